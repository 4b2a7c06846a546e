#include "stream.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GONE_US = 4400000, FALLBACK_US = 1000000, FILE_FALLBACK_US = 50000, COUNT_US = 500000, DROP_US = 2000000 };
enum { ORPHAN_TICK_US = 5000, QUIET_US = 20000 };

static void control_ready(struct watch *watch, u32 events);

static u64 after_ms(u64 from, u64 ms) { return ms > (u64)1 << 50 ? UINT64_MAX : from + ms * 1000; }

static void close_fd(int fd)
{
    if (fd >= 0)
        close(fd);
}

/* A pipe whose far end stays with us, without blocking. `ours` is 0 for the reading end, 1 for the writing end. */
static int half_pipe(int ours, int *mine, int *theirs)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC))
        return -1;
    *mine = fds[ours];
    *theirs = fds[!ours];
    return fcntl(*mine, F_SETFL, O_NONBLOCK);
}

static void close_theirs(struct ends *ends)
{
    close_fd(ends->control);
    if (ends->in != guest.null)
        close_fd(ends->in);
    if (ends->out != guest.null && ends->out != ends->in)
        close_fd(ends->out);
    if (ends->err != guest.null && ends->err != ends->in && ends->err != ends->out)
        close_fd(ends->err);
    close_fd(ends->channel);
}

static int open_output(struct stream *s, const struct run *run, u8 pipe, int *theirs)
{
    int mine = -1;
    int failed = half_pipe(0, &mine, theirs);
    if (mine >= 0)
        source_open(s, pipe, mine, run->window, run->keep);
    return failed;
}

static int open_terminal(struct stream *s, const struct run *run, struct ends *ends)
{
    int peer = pty_open(&s->shared_fd, run->rows, run->columns);
    if (peer < 0)
        return -1;
    ends->in = ends->out = ends->err = peer;
    ends->terminal = 1;
    source_open(s, 1, s->shared_fd, run->window, run->keep);
    sink_open(s, 0, s->shared_fd, 1);
    s->sinks[0].terminal = 1;
    return 0;
}

static int open_pipes(struct stream *s, const struct run *run, struct ends *ends)
{
    int is_tree = run->kind == KIND_FILE && (run->operation == OP_READ_TREE || run->operation == OP_WRITE_TREE);
    int wants_in = run->kind == KIND_FILE ? run->operation == OP_WRITE || run->operation == OP_WRITE_TREE : run->stdin_pipe;
    int wants_out = run->kind != KIND_FILE || run->operation == OP_READ || run->operation == OP_LIST ||
                    run->operation == OP_READLINK || run->operation == OP_READ_TREE || run->operation == OP_FINGERPRINT;
    ends->in = ends->out = ends->err = guest.null;
    if (wants_in) {
        int mine = -1;
        if (half_pipe(1, &mine, &ends->in))
            return -1;
        sink_open(s, 0, mine, 0);
    }
    if (wants_out && open_output(s, run, 1, &ends->out))
        return -1;
    if (run->kind == KIND_FILE && !is_tree)
        return 0;
    if (run->merge && !is_tree)
        ends->err = ends->out;
    else if (open_output(s, run, 2, &ends->err))
        return -1;
    return 0;
}

/* A command with a terminal has its channel beside it: then the channel's descriptor is a second one, closed with its sink. */
static int open_channel(struct stream *s, const struct run *run, struct ends *ends)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
        return -1;
    ends->channel = pair[1];
    int reader = fcntl(pair[0], F_DUPFD_CLOEXEC, 4);
    if (reader < 0 || fcntl(pair[0], F_SETFL, O_NONBLOCK)) {
        close(pair[0]);
        close_fd(reader);
        return -1;
    }
    /* Two descriptors of one socket: the reader closes by itself, the writer shuts its direction down first. */
    source_open(s, 3, reader, run->window, UINT64_MAX);
    sink_open(s, 3, pair[0], 0);
    s->sinks[1].socket = 1;
    return 0;
}

static int open_all(struct stream *s, const struct run *run, struct ends *ends, const char **step)
{
    int pair[2];
    *step = "pipe";
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
        return -1;
    s->control = pair[0];
    ends->control = pair[1];
    if (run->channel && run->kind != KIND_FILE && open_channel(s, run, ends))
        return -1;
    if (run->has_pty && run->kind != KIND_FILE) {
        *step = "pty";
        return open_terminal(s, run, ends);
    }
    return open_pipes(s, run, ends);
}

static void close_control(struct stream *s)
{
    if (s->control < 0)
        return;
    unwatch_fd(guest.poll, s->control);
    close(s->control);
    s->control = -1;
}

/* Opens what the command needs and forks its supervisor. 0, or -1 with errno and the step that failed. */
static int fork_supervisor(struct stream *s, struct run *run, const char **step)
{
    struct ends ends = {.control = -1, .in = -1, .out = -1, .err = -1, .channel = -1, .fresh = 1};
    int failed = open_all(s, run, &ends, step);
    if (!failed) {
        /* A raw clone: no handlers, no locks, we have one thread. */
        long pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (pid == 0) {
            if (run->kind == KIND_FILE)
                file_main(run, &ends);
            supervisor_main(run, &ends);
        }
        *step = "fork";
        failed = pid < 0 ? -1 : 0;
        s->supervisor = pid < 0 ? 0 : (pid_t)pid;
    }
    int err = errno;
    close_theirs(&ends);
    errno = err;
    return failed;
}

void command_start(struct stream *s, struct run *run, const u8 *message, size_t length)
{
    const char *step;
    s->quiet = run->quiet;
    s->grace_ms = run->grace_ms;
    s->drain_ms = run->drain_ms;
    s->deadline_ms = run->deadline_ms;
    s->output_limit = run->kind == KIND_FILE ? 0 : run->output_limit;
    s->tidy = run->kind == KIND_FILE && (run->operation == OP_WRITE || run->operation == OP_WRITE_TREE);
    s->pid = 0;
    if (!spare_take(s, run, message, length) && fork_supervisor(s, run, &step)) {
        int err = errno;
        close_fd(s->control);
        s->control = -1;
        stream_refuse(s->number, s, step, err, "the command was not started");
        return;
    }
    s->control_watch.ready = control_ready;
    watch_fd(guest.poll, s->control, EPOLLIN, &s->control_watch);
    if (s->deadline_ms)
        set_due(s->deadline_at = after_ms(s->began_us, s->deadline_ms));
}

static void send_order(struct stream *s, u32 type, i32 signal, u32 scope)
{
    struct order order = {.type = type, .signal = signal, .scope = scope};
    if (s->control >= 0)
        (void)!send(s->control, &order, sizeof order, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void command_signal(struct stream *s, i32 signal, u32 scope)
{
    if (s->kind == STREAM_COMMAND && signal > 0 && signal < NSIG)
        send_order(s, ORDER_SIGNAL, signal, scope);
}

static void kill_now(struct stream *s)
{
    if (s->kill_sent)
        return;
    u64 now = now_us();
    s->kill_sent = 1;
    s->kill_at = 0;
    s->gone_by = now + GONE_US;
    set_due(s->fallback_at = now + (s->kind == STREAM_FILE && !s->tidy ? FILE_FALLBACK_US : FALLBACK_US));
    if (s->tree_over)
        s->gone = 1;
    else
        send_order(s, ORDER_KILL, 0, 0);
}

void command_end(struct stream *s, u8 how)
{
    if (s->kind == STREAM_CONNECT) {
        connect_end(s, how);
        return;
    }
    if (s->ended)
        return;
    if (!s->how)
        s->how = how;
    if (how == HOW_DEADLINE && s->grace_ms && s->kind == STREAM_COMMAND && !s->kill_sent) {
        send_order(s, ORDER_SIGNAL, SIGTERM, SCOPE_TREE);
        set_due(s->kill_at = after_ms(now_us(), s->grace_ms));
        return;
    }
    kill_now(s);
}

/* Its supervisor is gone and the tree with no one above it but us: we end it ourselves, in sweep_orphans. */
static void lose(struct stream *s)
{
    s->lost = 1;
    if (!s->how)
        s->how = HOW_LOST;
    if (s->supervisor)
        kill(s->supervisor, SIGKILL);
    u64 now = now_us();
    guest.orphans_by = now + GONE_US;
    set_due(guest.orphans_at = now);
    if (!s->gone_by)
        set_due(s->gone_by = now + GONE_US);
}

static void exited(struct stream *s, const struct report *r)
{
    s->user_us = r->user_us;
    s->system_us = r->system_us;
    s->max_rss = r->max_rss;
    if (s->exited)
        return;
    s->exited = 1;
    s->status = r->status;
    s->elapsed_us = r->elapsed_us;
    s->deadline_at = 0;
    u64 now = now_us();
    set_due(s->drain_at = after_ms(now, s->drain_ms));
    s->drop_at = after_ms(s->drain_at, DROP_US / 1000);
    for (int i = 0; i < 3 && !output_full(); i++)
        source_pump(&s->sources[i]);
}

static void refused(struct stream *s, const struct report *r)
{
    char step[sizeof r->step + 1] = "";
    memcpy(step, r->step, sizeof r->step);
    s->tree_over = 1;
    stream_refuse(s->number, s, step, r->err, "the command was not started");
}

static void tell_start(struct stream *s)
{
    struct fields f = {.length = 0};
    field_u32(&f, 1, (u32)s->pid);
    send_frame(MSG_STARTED, s->number, f.data, f.length);
}

static void started(struct stream *s, const struct report *r)
{
    s->pid = r->pid;
    s->started = 1;
    if (s->deadline_at && s->deadline_ms)
        set_due(s->deadline_at = after_ms(now_us(), s->deadline_ms));
    if (s->quiet)
        set_due(s->start_at = now_us() + QUIET_US);
    else
        tell_start(s);
    if (s->kind == STREAM_COMMAND) /* what a file operation sees of us stays as it was when it began */
        spare_make();
}

static void take_report(struct stream *s, const struct report *r)
{
    switch (r->type) {
    case REPORT_STARTED: started(s, r); break;
    case REPORT_FAILED: refused(s, r); break;
    case REPORT_EXITED:
        exited(s, r);
        s->tree_over |= r->empty != 0;
        break;
    case REPORT_EMPTY: s->tree_over = 1; break;
    case REPORT_COUNT:
        s->left = r->left;
        s->counted = 1;
        break;
    case REPORT_GONE:
        exited(s, r);
        s->gone = r->gone != 0;
        s->tree_over |= s->gone;
        if (!s->gone)
            set_due(s->gone_by = now_us());
        break;
    case REPORT_RESULT:
        s->err = r->err;
        s->result_length = r->result_length <= sizeof s->result ? r->result_length : 0;
        memcpy(s->result, r->result, s->result_length);
        s->counted = s->tree_over = 1;
        exited(s, r);
        break;
    default: break;
    }
}

static void control_closed(struct stream *s)
{
    close_control(s);
    if (s->kind == STREAM_FILE) { /* a file operation has no tree: the end of its process is the end of it */
        struct report none = {.status = SIGKILL, .elapsed_us = now_us() - s->began_us};
        if (!s->tree_over && !s->how)
            s->how = HOW_LOST;
        if (!s->tree_over)
            s->err = EINTR;
        s->tree_over = s->gone = s->counted = 1;
        if (!s->ended)
            exited(s, &none);
    } else if (!s->tree_over) {
        lose(s);
    }
}

static void control_ready(struct watch *watch, u32 events)
{
    struct stream *s = (struct stream *)((u8 *)watch - offsetof(struct stream, control_watch));
    int reset = 0;
    (void)events;
    for (int i = 0; s->control >= 0 && i < 16; i++) {
        struct report r;
        ssize_t n = recv(s->control, &r, sizeof r, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        /* It ended with an order of ours unread. Linux tells that once, before its last reports; gVisor again and again. */
        if (n < 0 && errno == ECONNRESET && !reset++)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n == sizeof r)
            take_report(s, &r);
        else
            control_closed(s);
    }
    stream_settle(s);
}

static void send_end(struct stream *s)
{
    struct fields f = {.length = 0};
    u8 pair[24], held = 0, how = s->how;
    int signaled = WIFSIGNALED(s->status);
    i32 code = signaled ? WTERMSIG(s->status) : WEXITSTATUS(s->status);
    if (!how)
        how = signaled ? HOW_SIGNALED : HOW_EXITED;
    else if (signaled)
        code += 128;
    for (int i = 0; i < 3; i++)
        held |= (u8)((s->sources[i].fd >= 0) << (i + 1));
    field_u8(&f, 1, how);
    field_u32(&f, 2, (u32)code);
    field_u64(&f, 3, s->elapsed_us);
    put_u64(pair, s->user_us);
    put_u64(pair + 8, s->system_us);
    field_bytes(&f, 4, pair, 16);
    field_u64(&f, 5, s->max_rss);
    for (int i = 0; i < 3; i++)
        put_u64(pair + 8 * i, s->sources[i].produced);
    field_bytes(&f, 6, pair, 24);
    field_u8(&f, 7, held);
    field_u32(&f, 8, s->tree_over ? 0 : s->left);
    field_u8(&f, 9, s->gone);
    if (s->kind == STREAM_FILE) {
        field_u32(&f, 10, (u32)s->err);
        field_bytes(&f, 11, s->result, s->result_length);
    }
    for (int i = 0; i < 3; i++)
        s->sources[i].untold = 0; /* END says it */
    stream_finish(s, MSG_END, &f);
    for (int i = 0; i < 3; i++)
        source_drop(&s->sources[i]);
    for (int i = 0; i < 2; i++)
        sink_close(&s->sinks[i]);
}

/* 1 when all output has been sent that will be. */
static int drained(struct stream *s, u64 now)
{
    int done = 1;
    for (int i = 0; i < 3; i++) {
        struct source *source = &s->sources[i];
        if (now >= s->drain_at)
            source_bound(source);
        if (s->how && now >= s->drop_at && !source->credit && source->fd >= 0)
            source->last = 0; /* the host that ended it does not take the rest */
        done &= source_done(source);
    }
    if (!done)
        set_due(now < s->drain_at ? s->drain_at : s->how && now < s->drop_at ? s->drop_at : UINT64_MAX);
    return done;
}

void command_settle(struct stream *s)
{
    u64 now = now_us();
    if (s->ended || (!s->exited && !(s->gone_by && now >= s->gone_by)))
        return;
    if (s->how && s->tree_over)
        s->gone = 1;
    if (s->how && !s->lost && !s->kill_sent)
        kill_now(s); /* it ended within its grace: what it left behind ends too */
    if (s->how && !s->gone && now < s->gone_by) {
        set_due(s->gone_by);
        return;
    }
    if (!s->exited) { /* not even SIGKILL ended it: the host has to end the sandbox */
        struct report none = {.status = SIGKILL, .elapsed_us = now - s->began_us};
        exited(s, &none);
        s->drain_at = s->drop_at = now;
    }
    if (!drained(s, now))
        return;
    if (!s->tree_over && !s->counted) {
        if (!s->counting) {
            s->counting = 1;
            s->left = 0xffffffff;
            send_order(s, ORDER_COUNT, 0, 0);
            set_due(s->count_by = now + COUNT_US);
        }
        if (now < s->count_by && s->control >= 0) {
            set_due(s->count_by);
            return;
        }
    }
    send_end(s);
    stream_settle(s);
}

void command_tick(struct stream *s, u64 now)
{
    if (s->ended)
        return;
    if (s->deadline_at && now >= s->deadline_at) {
        s->deadline_at = 0;
        command_end(s, HOW_DEADLINE);
    } else if (s->deadline_at) {
        set_due(s->deadline_at);
    }
    if (s->start_at && now >= s->start_at) {
        s->start_at = 0;
        if (!s->exited)
            tell_start(s);
    } else if (s->start_at) {
        set_due(s->start_at);
    }
    if (s->tell_at && now >= s->tell_at) {
        s->tell_at = 0;
        for (int i = 0; i < 3; i++)
            source_tell(&s->sources[i]);
    } else if (s->tell_at) {
        set_due(s->tell_at);
    }
    if (s->kill_at && now >= s->kill_at)
        kill_now(s);
    else if (s->kill_at)
        set_due(s->kill_at);
    if (s->kill_sent && !s->fallen_back && s->control >= 0 && !s->tree_over) {
        /* The supervisor (or file operation) does not answer: something inside holds it. It goes first, then its tree. */
        s->fallen_back = now >= s->fallback_at && s->supervisor > 0;
        if (s->fallen_back)
            kill(s->supervisor, SIGKILL);
        else
            set_due(s->fallback_at);
    }
    command_settle(s);
}

void command_reaped(struct stream *s, int status)
{
    s->status = status;
    if (!s->exited)
        s->elapsed_us = now_us() - s->began_us;
}

int is_supervisor(pid_t pid)
{
    if (pid == spare_pid())
        return 1;
    EACH_STREAM(s)
        if (s->supervisor == pid)
            return 1;
    return 0;
}

/* Ends what lost supervisors left to us. Everything below us that is not below a supervisor is theirs. */
void sweep_orphans(void)
{
    u32 left = tree_kill(is_supervisor) != 0; /* zombies included: those are reaped before the next sweep */
    u64 now = now_us();
    EACH_STREAM(s) {
        if (!s->lost || s->tree_over || s->supervisor)
            continue;
        if (left && now < guest.orphans_by)
            continue;
        struct report r = {.status = s->status ? s->status : SIGKILL, .elapsed_us = now - s->began_us};
        s->gone = s->tree_over = left == 0;
        if (!s->ended)
            exited(s, &r);
        s->gone_by = now;
        stream_settle(s);
    }
    guest.orphans_at = 0;
    EACH_STREAM(s)
        if (s->lost && !s->tree_over && now < guest.orphans_by)
            set_due(guest.orphans_at = now + ORPHAN_TICK_US);
}
