#include "fingerprint.h"
#include "guest.h"
#include "stream.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

/* Above OUTPUT_FULL no pipe is read; above OUTPUT_LIMIT, which answers alone can reach, the host is not listened to. */
enum { OUTPUT_FULL = MAX_PAYLOAD, OUTPUT_LIMIT = 512 * 1024, EXIT_US = 2500000, KILL_ALL_US = 4600000 };

struct guest guest = {.channel = -1};

/* Where both queues begin. Pages that nothing was written to cost nothing, and a sandbox of one command asks for no more. */
static u8 in_room[HEADER_SIZE + MAX_PAYLOAD], out_room[2 * (HEADER_SIZE + MAX_PAYLOAD)];

static struct watch channel_watch, signal_watch, source_watch;

void watch_fd(int poll, int fd, u32 events, struct watch *watch)
{
    struct epoll_event event = {.events = events, .data.ptr = watch};
    if (epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event))
        guest_fatal("memory", "epoll_ctl", errno);
}

void unwatch_fd(int poll, int fd) { epoll_ctl(poll, EPOLL_CTL_DEL, fd, NULL); }

void set_due(u64 at)
{
    if (at < guest.next_due)
        guest.next_due = at;
}

int output_full(void) { return buffer_used(&guest.out) >= OUTPUT_FULL; }

/* Without a PID namespace of its own the kernel does not end what we leave: so we do, and wait until it is gone. */
static _Noreturn void leave(void)
{
    if (getpid() == 1 && !guest.unisolated)
        _exit(0);
    spare_drop();
    EACH_STREAM(s)
        if (s->control >= 0)
            close(s->control); /* to a supervisor, this is the order to end its tree */
    for (u64 until = now_us() + EXIT_US; now_us() < until; ) {
        while (waitpid(-1, NULL, WNOHANG | __WALL) > 0)
            ;
        if (errno == ECHILD)
            break;
        tree_kill(is_supervisor);
        struct pollfd wait = {.fd = guest.signals, .events = POLLIN};
        poll(&wait, 1, 5);
        struct signalfd_siginfo info;
        (void)!read(guest.signals, &info, sizeof info);
    }
    _exit(0);
}

/* Writes what waits. Leaves the process when the host is gone. */
static void flush(void)
{
    while (buffer_used(&guest.out)) {
        ssize_t n = write(guest.channel, guest.out.data + guest.out.start, buffer_used(&guest.out));
        if (n > 0)
            buffer_consume(&guest.out, (size_t)n);
        else if (n < 0 && errno == EINTR)
            continue;
        else if (n < 0 && errno == EAGAIN)
            return;
        else
            leave();
    }
}

_Noreturn void guest_fatal(const char *step, const char *what, int err)
{
    for (int i = 0; i < 10 && buffer_used(&guest.out); i++) {
        flush();
        struct pollfd wait = {.fd = guest.channel, .events = POLLOUT};
        if (buffer_used(&guest.out))
            poll(&wait, 1, 100);
    }
    if (!buffer_used(&guest.out))
        send_fatal(guest.channel, step, what, err);
    leave();
}

u8 *frame_room(size_t length)
{
    if (buffer_reserve(&guest.out, HEADER_SIZE + length))
        guest_fatal("memory", "the output queue", ENOMEM);
    return guest.out.data + guest.out.end + HEADER_SIZE;
}

void frame_done(u8 type, u8 flags, u16 pipe, u32 stream, size_t length)
{
    put_header(guest.out.data + guest.out.end, (u32)length, type, flags, pipe, stream);
    guest.out.end += HEADER_SIZE + length;
}

void send_frame(u8 type, u32 stream, const void *payload, size_t length)
{
    u8 *room = frame_room(length);
    if (length)
        memcpy(room, payload, length);
    frame_done(type, 0, 0, stream, length);
}

void send_credit(u32 stream, u16 pipe, u32 amount)
{
    put_u32(frame_room(4), amount);
    frame_done(MSG_GUEST_CREDIT, 0, pipe, stream, 4);
}

/* The cheap fingerprint as it is now. What has no room is left out. */
static size_t look(u8 *room, size_t size)
{
    struct lines l = {.data = room, .size = size, .fd = -1};
    fingerprint_cheap(&l);
    return l.used;
}

static void greet(const struct message *m)
{
    struct hello hello;
    struct utsname name;
    struct fields f = {.length = 0};
    char machine[200] = "";
    if (hello_parse(&hello, m->payload, m->length))
        guest_fatal("protocol", "HELLO that this guest does not speak", 0);
    guest.unisolated |= hello.unisolated;
    if (hello.life_ms && hello.life_ms < (u64)1 << 50)
        set_due(guest.life_at = now_us() + hello.life_ms * 1000);
    if (!uname(&name)) {
        text_add(machine, sizeof machine, name.machine);
        text_add(machine, sizeof machine, " ");
        text_add(machine, sizeof machine, name.release);
    }
    field_u32(&f, 1, 1);
    field_u32(&f, 2, (u32)getpid());
    field_text(&f, 3, machine);
    u8 *room = frame_room(MAX_PAYLOAD);
    memcpy(room, f.data, f.length);
    if (hello.fingerprint) { /* nothing has run here yet: what is told now is what a start is compared by */
        size_t used = look(room + f.length + FIELD_HEADER_SIZE, MAX_PAYLOAD - f.length - FIELD_HEADER_SIZE);
        room[f.length] = 4;
        put_u32(room + f.length + 1, (u32)used);
        f.length += FIELD_HEADER_SIZE + used;
    }
    frame_done(MSG_GUEST_HELLO, 0, 0, 0, f.length);
    if (hello.ahead) {
        flush(); /* the host does not wait for the fork */
        spare_expect();
    }
}

static void take_look(void)
{
    size_t used = look(frame_room(MAX_PAYLOAD), MAX_PAYLOAD);
    frame_done(MSG_LOOKED, 0, 0, 0, used);
}

/* The stream for a message that opens one, or NULL when it was answered already: a number is used once, whatever comes. */
static struct stream *open_stream(const struct message *m, u8 kind)
{
    struct stream *known = stream_find(m->stream);
    if (known) {
        stream_resend(known);
        return NULL;
    }
    if (!m->fresh) {
        stream_refuse(m->stream, NULL, "forgotten", 0, "this stream number was used and closed");
        return NULL;
    }
    struct stream *s = stream_new(m->stream, kind);
    if (!s)
        stream_refuse(m->stream, NULL, "limit", 0, "more than 1024 streams");
    return s;
}

/* The payload as memory of our own, with a spare byte behind it. */
static u8 *own(const struct message *m)
{
    if (m->owned)
        return m->owned;
    u8 *bytes = malloc(m->length + 1);
    if (!bytes)
        guest_fatal("memory", "a message", ENOMEM);
    memcpy(bytes, m->payload, m->length);
    return bytes;
}

static void take_run(const struct message *m)
{
    struct run run;
    if (run_parse(&run, own(m), m->length))
        guest_fatal(errno == ENOMEM ? "memory" : "protocol", "RUN", errno == ENOMEM ? ENOMEM : 0);
    struct stream *s = open_stream(m, run.kind == KIND_FILE ? STREAM_FILE : STREAM_COMMAND);
    const char *error = run_error(&run);
    if (s && error)
        stream_refuse(m->stream, s, "field", 0, error);
    else if (s)
        command_start(s, &run, m->owned ? NULL : m->payload, m->length);
    run_free(&run);
}

static void take_connect(const struct message *m)
{
    struct connect_request request;
    if (connect_parse(&request, own(m), m->length))
        guest_fatal("protocol", "CONNECT", 0);
    struct stream *s = open_stream(m, STREAM_CONNECT);
    const char *error = connect_error(&request);
    if (s && error)
        stream_refuse(m->stream, s, "field", 0, error);
    else if (s)
        connect_start(s, &request);
    free(request.bytes);
}

static void take_list(const struct message *m)
{
    u8 *payload = frame_room(MAX_STREAMS * 14);
    size_t length = 0;
    EACH_STREAM(s) {
        if (s->closed || s->kind == STREAM_RECORD)
            continue;
        u8 *at = payload + length;
        at[0] = 3;
        put_u32(at + 1, 9);
        put_u32(at + 5, s->number);
        at[9] = s->ended;
        put_u32(at + 10, (u32)s->pid);
        length += 14;
    }
    frame_done(MSG_REPLY, 0, 0, m->stream, length);
}

static void kill_all_done(u8 gone)
{
    struct fields f = {.length = 0};
    struct stream *s = stream_find(guest.kill_all_stream);
    guest.killing_all = 0;
    field_u32(&f, 1, guest.kill_all_count);
    field_u8(&f, 2, gone);
    if (s)
        stream_finish(s, MSG_REPLY, &f);
}

/* Reaps what has ended below us. */
static void reap(void)
{
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG | WUNTRACED | __WALL);
        if (pid < 0 && errno == ECHILD && guest.killing_all)
            kill_all_done(1);
        if (pid <= 0)
            return;
        if (pid == spare_pid())
            spare_drop();
        EACH_STREAM(s) {
            if (s->supervisor == pid && WIFSTOPPED(status)) {
                kill(pid, SIGKILL); /* stopped from inside: it cannot do its work, and is as good as killed */
            } else if (s->supervisor == pid) {
                s->supervisor = 0;
                stream_settle(s);
            } else if (s->lost && s->pid == pid && !s->exited && !WIFSTOPPED(status)) {
                command_reaped(s, status);
            }
        }
    }
}

static void take_kill_all(const struct message *m)
{
    struct stream *record = open_stream(m, STREAM_RECORD);
    if (!record)
        return;
    struct pids found = {0};
    u32 ours = 0;
    tree_find(&found, NULL);
    for (u32 i = 0; i < found.count; i++)
        ours += (u32)is_supervisor(found.list[i]);
    guest.kill_all_stream = m->stream;
    guest.kill_all_count = found.count - ours;
    guest.killing_all = 1;
    spare_drop();
    set_due(guest.kill_all_by = now_us() + KILL_ALL_US);
    free(found.list);
    EACH_STREAM(s) {
        if (s->ended && s->control >= 0 && s->supervisor > 0) { /* what it left in the background */
            struct order order = {.type = ORDER_KILL};
            (void)!send(s->control, &order, sizeof order, MSG_DONTWAIT | MSG_NOSIGNAL);
        } else if (s != record) {
            command_end(s, HOW_KILLED);
        }
    }
    /* Never anywhere but as PID 1 of a namespace of our own: elsewhere -1 is the whole machine. */
    if (getpid() == 1 && !guest.unisolated)
        kill(-1, SIGKILL);
    reap();
}

static void take_pipe_message(struct stream *s, const struct message *m)
{
    if (m->type == MSG_DATA)
        sink_data(&s->sinks[m->pipe == 3], m->payload, m->length, m->flags & FLAG_EOF);
    else
        source_credit(&s->sources[m->pipe - 1], get_u32(m->payload));
    stream_settle(s);
}

static void take_message(const struct message *m)
{
    struct stream *s = m->stream ? stream_find(m->stream) : NULL;
    int open = s && !s->ended && s->kind != STREAM_RECORD;
    switch (m->type) {
    case MSG_HELLO: greet(m); break;
    case MSG_RUN: take_run(m); break;
    case MSG_CONNECT: take_connect(m); break;
    case MSG_LIST: take_list(m); break;
    case MSG_KILL_ALL: take_kill_all(m); break;
    case MSG_PING: send_frame(MSG_PONG, 0, m->payload, m->length); break;
    case MSG_LOOK: take_look(); break;
    case MSG_CLOSE:
        if (s && s->ended)
            stream_close(s);
        break;
    case MSG_DATA:
    case MSG_CREDIT:
        if (open)
            take_pipe_message(s, m);
        break;
    case MSG_SIGNAL:
        if (m->payload[4] > SCOPE_TREE)
            guest_fatal("protocol", "SIGNAL with an unknown scope", 0);
        if (open)
            command_signal(s, (i32)get_u32(m->payload), m->payload[4]);
        break;
    case MSG_RESIZE:
        if (open && s->sinks[0].terminal && s->shared_fd >= 0)
            pty_resize(s->shared_fd, get_u16(m->payload), get_u16(m->payload + 2));
        break;
    case MSG_KILL:
        if (open)
            command_end(s, HOW_KILLED);
        break;
    default: break;
    }
}

static int input_paused(void) { return guest.killing_all || buffer_used(&guest.out) > OUTPUT_LIMIT; }

static void take_messages(void)
{
    struct message m;
    int more = 0;
    while (!input_paused() && (more = parser_next(&guest.parser, &m)) > 0)
        take_message(&m);
    guest.input_waiting = told_again(more > 0); /* a pause cut the loop short */
    if (more < 0)
        guest_fatal("protocol", guest.parser.error, 0);
}

static void channel_ready(struct watch *watch, u32 events)
{
    (void)watch;
    if (events & EPOLLOUT)
        flush();
    if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR)) || input_paused())
        return;
    if (buffer_reserve(&guest.parser.in, HEADER_SIZE + MAX_PAYLOAD))
        guest_fatal("memory", "the input queue", ENOMEM);
    struct buffer *in = &guest.parser.in;
    ssize_t n = read(guest.channel, in->data + in->end, in->size - in->end);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        leave();
    if (n > 0)
        in->end += (size_t)n;
    take_messages();
}

static void signal_ready(struct watch *watch, u32 events)
{
    struct signalfd_siginfo info;
    (void)watch;
    (void)events;
    (void)!read(guest.signals, &info, sizeof info);
    reap();
}

/* One frame of each pipe in turn: epoll moves what it has handed out to the end of its list, and we take one or two at a time. */
static void sources_ready(struct watch *watch, u32 events)
{
    (void)watch;
    (void)events;
    for (int round = 0; round < 16 && !output_full(); round++) {
        struct epoll_event event[2];
        int count = epoll_wait(guest.source_poll, event, 2, 0);
        for (int i = 0; i < count; i++)
            ((struct watch *)event[i].data.ptr)->ready(event[i].data.ptr, event[i].events);
        if (count < 2)
            return;
    }
}

static void set_interest(void)
{
    u8 wanted = (u8)((input_paused() ? 0 : 1) | (buffer_used(&guest.out) ? 2 : 0));
    if (wanted != guest.channel_interest) {
        struct epoll_event event = {.data.ptr = &channel_watch};
        event.events = (wanted & 1 ? EPOLLIN : 0) | (wanted & 2 ? EPOLLOUT : 0);
        epoll_ctl(guest.poll, EPOLL_CTL_MOD, guest.channel, &event);
        guest.channel_interest = wanted;
    }
    u8 muted = (u8)output_full();
    if (muted != guest.sources_muted) {
        guest.sources_muted = muted;
        if (muted)
            unwatch_fd(guest.poll, guest.source_poll);
        else
            watch_fd(guest.poll, guest.source_poll, EPOLLIN, &source_watch);
    }
}

static void tick(void)
{
    u64 now = now_us();
    if (now < guest.next_due)
        return;
    guest.next_due = UINT64_MAX;
    if (guest.life_at && now >= guest.life_at)
        leave();
    if (guest.life_at)
        set_due(guest.life_at);
    if (guest.killing_all && now >= guest.kill_all_by)
        kill_all_done(0);
    else if (guest.killing_all)
        set_due(guest.kill_all_by);
    if (guest.orphans_at && now >= guest.orphans_at)
        sweep_orphans();
    else if (guest.orphans_at)
        set_due(guest.orphans_at);
    EACH_STREAM(s)
        if (!s->ended && s->kind != STREAM_RECORD && s->kind != STREAM_CONNECT)
            command_tick(s, now);
}

static int time_left(void)
{
    if (guest.input_waiting && !input_paused())
        return 0;
    if (guest.next_due == UINT64_MAX)
        return -1;
    u64 now = now_us();
    if (now >= guest.next_due)
        return 0;
    u64 ms = (guest.next_due - now + 999) / 1000;
    return ms > INT_MAX ? INT_MAX : (int)ms;
}

/* Descriptors 0 to 3 are the command's: ours lie above, so that nothing of ours is ever overwritten or handed on. */
static void set_up_descriptors(int channel)
{
    guest.channel = fcntl(channel, F_DUPFD_CLOEXEC, 4);
    if (guest.channel < 0)
        _exit(1);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0)
        guest_fatal("guest", "open /dev/null", errno);
    guest.null = fcntl(null, F_DUPFD_CLOEXEC, 4);
    for (int fd = 0; fd < 4; fd++) {
#if defined(__SANITIZE_ADDRESS__)
        if (fd == 2)
            continue; /* the sanitizer's report goes there */
#endif
        dup3(null, fd, O_CLOEXEC); /* EINVAL where it is the same */
    }
    if (null > 3)
        close(null);
    if (channel > 3)
        close(channel);
    fcntl(guest.channel, F_SETFL, O_NONBLOCK);
    tree_open_proc();
}

/* What our starter ignores (Python: SIGPIPE) would be ignored in every command. */
void signals_default(void)
{
    for (int number = 1; number < NSIG; number++)
        if (number != SIGKILL && number != SIGSTOP)
            signal(number, SIG_DFL);
}

static void set_up_process(void)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* same-user code inside must not trace us or open our descriptors */
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    umask(022);
    (void)!chdir("/");
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    guest.signals = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    guest.poll = epoll_create1(EPOLL_CLOEXEC);
    guest.source_poll = epoll_create1(EPOLL_CLOEXEC);
    if (guest.signals < 0 || guest.poll < 0 || guest.source_poll < 0)
        guest_fatal("guest", "signalfd or epoll", errno);
}

_Noreturn void guest_main(int channel_fd, int unisolated)
{
    guest.unisolated = unisolated != 0;
    guest.next_due = UINT64_MAX;
    guest.parser.in = (struct buffer){.data = in_room, .size = sizeof in_room, .borrowed = 1};
    guest.out = (struct buffer){.data = out_room, .size = sizeof out_room, .borrowed = 1};
    set_up_descriptors(channel_fd);
    set_up_process();
    channel_watch.ready = channel_ready;
    signal_watch.ready = signal_ready;
    source_watch.ready = sources_ready;
    watch_fd(guest.poll, guest.channel, EPOLLIN, &channel_watch);
    guest.channel_interest = 1;
    watch_fd(guest.poll, guest.signals, EPOLLIN, &signal_watch);
    watch_fd(guest.poll, guest.source_poll, EPOLLIN, &source_watch);
    for (;;) {
        flush();
        set_interest();
        streams_bury();
        struct epoll_event event[16];
        int count = epoll_wait(guest.poll, event, 16, time_left());
        if (count < 0 && errno != EINTR)
            guest_fatal("guest", "epoll_wait", errno);
        for (int i = 0; i < count; i++)
            ((struct watch *)event[i].data.ptr)->ready(event[i].data.ptr, event[i].events);
        tick();
        if (guest.input_waiting && !input_paused())
            take_messages();
    }
}
