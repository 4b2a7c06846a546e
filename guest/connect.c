#include "stream.h"

#include <errno.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int failed(struct stream *s, int err)
{
    stream_refuse(s->number, s, "connect", err, "no connection");
    return -1;
}

static void connected(struct stream *s)
{
    struct fields f = {.length = 0};
    s->started = 1;
    field_u32(&f, 1, 0);
    send_frame(MSG_STARTED, s->number, f.data, f.length);
    source_open(s, 3, s->shared_fd, s->left, UINT64_MAX);
    sink_open(s, 3, s->shared_fd, 1);
    s->sinks[1].socket = 1;
}

static void connect_ready(struct watch *watch, u32 events)
{
    struct stream *s = (struct stream *)((u8 *)watch - offsetof(struct stream, connect_watch));
    int err = 0;
    socklen_t size = sizeof err;
    (void)events;
    if (!s->connecting)
        return;
    unwatch_fd(guest.poll, s->shared_fd);
    s->connecting = 0;
    if (getsockopt(s->shared_fd, SOL_SOCKET, SO_ERROR, &err, &size))
        err = errno;
    if (err)
        failed(s, err);
    else
        connected(s);
}

void connect_start(struct stream *s, struct connect_request *request)
{
    struct sockaddr_un path = {.sun_family = AF_UNIX};
    struct sockaddr_in port = {.sin_family = AF_INET, .sin_port = htons(request->tcp)};
    port.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    s->left = request->window;
    s->shared_fd = socket(request->unix_path ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->shared_fd < 0) {
        failed(s, errno);
        return;
    }
    const struct sockaddr *to = (const struct sockaddr *)&port;
    socklen_t size = sizeof port;
    if (request->unix_path) {
        memcpy(path.sun_path, request->unix_path, request->unix_length);
        if (path.sun_path[0] == '@')
            path.sun_path[0] = 0;
        to = (const struct sockaddr *)&path;
        size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + request->unix_length + (path.sun_path[0] != 0));
    }
    if (!connect(s->shared_fd, to, size)) {
        connected(s);
        return;
    }
    if (errno != EINPROGRESS) {
        failed(s, errno);
        return;
    }
    s->connecting = 1;
    s->connect_watch.ready = connect_ready;
    watch_fd(guest.poll, s->shared_fd, EPOLLOUT, &s->connect_watch);
}

void connect_end(struct stream *s, u8 how)
{
    if (s->ended)
        return;
    struct fields f = {.length = 0};
    u8 counts[24] = {0};
    source_close(&s->sources[2]);
    sink_close(&s->sinks[1]);
    put_u64(counts + 16, s->sources[2].produced);
    field_u8(&f, 1, how);
    field_u32(&f, 2, 0);
    field_u64(&f, 3, now_us() - s->began_us);
    field_bytes(&f, 6, counts, sizeof counts);
    field_u8(&f, 9, how == HOW_KILLED);
    stream_finish(s, MSG_END, &f);
    stream_settle(s); /* closes the socket */
}

void connect_settle(struct stream *s)
{
    if (s->started && s->sources[2].fd < 0 && s->sinks[1].fd < 0)
        connect_end(s, HOW_EXITED);
}
