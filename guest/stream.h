/* Streams: one for each command, file operation and connection; and the bytes that flow through their pipes. */
#ifndef PROOFBOX_STREAM_H
#define PROOFBOX_STREAM_H

#include "frame.h"
#include "supervisor.h"
#include "tree.h"

#include <sys/types.h>

enum { MAX_STREAMS = 1024, BUCKETS = 256, FIRST_CREDIT = 262144, MAX_CREDIT_BITS = 31 };

/* What epoll hands back. */
struct watch {
    void (*ready)(struct watch *self, u32 events);
};

struct stream;

/* A pipe from the command to the host. */
struct source {
    struct watch watch;
    struct stream *stream;
    int fd;
    u8 pipe, watched, drop; /* drop: after END what is read goes nowhere */
    u8 untold;              /* it has ended, and the host does not know yet */
    u8 bounded;             /* the drain window has closed: `last` bytes more, then it counts as held open */
    u32 credit;
    u64 last, produced, keep;
};

/* A pipe from the host to the command. A shared descriptor (connection, terminal) is closed with its stream. */
struct sink {
    struct watch watch;
    struct stream *stream;
    int fd;
    u8 pipe, watched, eof, shared, terminal, socket;
    u32 credit, owed;
    struct buffer queue;
};

enum stream_kind { STREAM_RECORD, STREAM_COMMAND, STREAM_FILE, STREAM_CONNECT };
enum { HOW_EXITED, HOW_SIGNALED, HOW_DEADLINE, HOW_OUTPUT, HOW_KILLED, HOW_LOST };

struct stream {
    struct stream *next, *grave;
    u32 number;
    u8 kind, connecting, started, quiet, exited, ended, closed, dead;
    u8 how;      /* why we end it; 0: we do not */
    u8 tidy;     /* a file operation that removes what it has half made, and is given the time for it */
    u8 kill_sent, fallen_back, tree_over, gone, lost, counting, counted;
    struct source sources[3]; /* pipes 1, 2, 3 */
    struct sink sinks[2];     /* pipes 0 and 3 */
    struct watch control_watch, connect_watch;
    int control, shared_fd;
    pid_t supervisor, pid;
    u32 grace_ms, drain_ms, left;
    u64 began_us, deadline_at, start_at, tell_at, kill_at, fallback_at, gone_by, drain_at, drop_at, count_by;
    u64 deadline_ms, output_limit;
    i32 status, err;
    u64 elapsed_us, user_us, system_us, max_rss;
    u8 result[48];
    u32 result_length;
    u8 *final; /* the END or REFUSED frame, kept until CLOSE */
    size_t final_length;
};

/* The guest: one for each process. */
struct guest {
    int channel, poll, source_poll, signals, null;
    u8 unisolated, sources_muted, channel_interest, input_waiting, killing_all;
    struct parser parser;
    struct buffer out;
    struct stream *buckets[BUCKETS], *graves;
    u32 stream_count;
    u64 life_at, orphans_at, orphans_by, next_due;
    u32 kill_all_stream, kill_all_count;
    u64 kill_all_by;
};
extern struct guest guest;

/* guest.c: the connection */
u8 *frame_room(size_t length); /* where the payload of the next frame may be written */
void frame_done(u8 type, u8 flags, u16 pipe, u32 stream, size_t length);
void send_frame(u8 type, u32 stream, const void *payload, size_t length);
void send_credit(u32 stream, u16 pipe, u32 amount);
_Noreturn void guest_fatal(const char *step, const char *what, int err);
int output_full(void);
void watch_fd(int poll, int fd, u32 events, struct watch *watch);
void unwatch_fd(int poll, int fd);
void set_due(u64 at); /* the loop must look at the clock then */

/* stream.c: the table */
struct stream *stream_find(u32 number);
struct stream *stream_new(u32 number, u8 kind); /* NULL: the table is full, or memory is out */
void stream_refuse(u32 number, struct stream *stream, const char *step, int err, const char *text);
void stream_finish(struct stream *stream, u8 type, const struct fields *fields); /* sends and keeps the last frame */
void stream_resend(const struct stream *stream);
void stream_close(struct stream *stream);
void stream_release(struct stream *stream); /* frees it if it is closed and nothing of it lives */
void streams_bury(void);
#define EACH_STREAM(s) \
    for (u32 each_ = 0; each_ < BUCKETS; each_++) \
        for (struct stream *s = guest.buckets[each_]; s; s = s->next)

/* pipe.c: sources and sinks */
void source_open(struct stream *stream, u8 pipe, int fd, u32 window, u64 keep);
void source_pump(struct source *source); /* reads at most one frame */
void source_credit(struct source *source, u32 amount);
void source_bound(struct source *source);
void source_drop(struct source *source);
void source_tell(struct source *source); /* sends the EOF that was held back */
void source_close(struct source *source);
int source_done(const struct source *source);
void sink_open(struct stream *stream, u8 pipe, int fd, int shared);
void sink_data(struct sink *sink, const u8 *data, size_t length, int eof);
void sink_close(struct sink *sink);

/* command.c: the life of a command or file operation, as seen from the guest */
void command_start(struct stream *stream, struct run *run, const u8 *message, size_t length); /* the RUN itself; NULL if it was in parts */
void command_end(struct stream *stream, u8 how); /* ends its tree; the first reason counts */
void command_signal(struct stream *stream, i32 signal, u32 scope);
void command_settle(struct stream *stream); /* sends END if everything for it is there */
void command_tick(struct stream *stream, u64 now);
void command_reaped(struct stream *stream, int status);
int is_supervisor(pid_t pid);
void sweep_orphans(void);

/* spare.c */
void spare_expect(void); /* the first command is to find one too */
void spare_make(void); /* if it may be of use; a failure is no failure */
int spare_take(struct stream *stream, const struct run *run, const u8 *message, size_t length); /* 1: it runs the command */
void spare_drop(void);
pid_t spare_pid(void); /* 0: there is none. A spare that was reaped, or stopped from inside, is dropped by who sees it */

/* connect.c */
void connect_start(struct stream *stream, struct connect_request *request);
void connect_settle(struct stream *stream);
void connect_end(struct stream *stream, u8 how);

/* pty.c: master in *master, the command's side as result, or -1 with errno */
int pty_open(int *master, u16 rows, u16 columns);
void pty_resize(int master, u16 rows, u16 columns);

void stream_settle(struct stream *stream);

#endif
