#include "stream.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TELL_US = 2000 };

static void source_watch(struct source *source, int wanted)
{
    if (source->watched == wanted || source->fd < 0)
        return;
    source->watched = (u8)wanted;
    if (wanted)
        watch_fd(guest.source_poll, source->fd, EPOLLIN, &source->watch);
    else
        unwatch_fd(guest.source_poll, source->fd);
}

static void source_ready(struct watch *watch, u32 events)
{
    struct source *source = (struct source *)watch;
    (void)events;
    if (source->fd < 0)
        return;
    source_pump(source);
    stream_settle(source->stream);
}

void source_open(struct stream *stream, u8 pipe, int fd, u32 window, u64 keep)
{
    struct source *source = &stream->sources[pipe - 1];
    source->fd = fd;
    source->credit = window;
    source->keep = keep;
    source->watch.ready = source_ready;
    source_watch(source, 1);
}

void source_close(struct source *source)
{
    if (source->fd < 0)
        return;
    source_watch(source, 0);
    if (source->fd != source->stream->shared_fd)
        close(source->fd);
    source->fd = -1;
}

int source_done(const struct source *source) { return source->fd < 0 || source->drop || (source->bounded && !source->last); }

/* How many bytes of what is read next may travel: what is above `keep`, and above the output limit, is counted only. */
static u64 sendable(const struct source *source)
{
    const struct stream *stream = source->stream;
    u64 room = source->produced < source->keep ? source->keep - source->produced : 0;
    if (stream->output_limit && source->pipe != 3) {
        u64 total = stream->sources[0].produced + stream->sources[1].produced;
        u64 more = total < stream->output_limit ? stream->output_limit - total : 0;
        room = room < more ? room : more;
    }
    return room;
}

static void count_output(struct source *source, size_t length)
{
    struct stream *stream = source->stream;
    source->produced += length;
    if (source->bounded)
        source->last -= length < source->last ? length : source->last;
    u64 total = stream->sources[0].produced + stream->sources[1].produced;
    if (stream->output_limit && total > stream->output_limit && !stream->ended)
        command_end(stream, HOW_OUTPUT);
}

void source_tell(struct source *source)
{
    if (!source->untold)
        return;
    source->untold = 0;
    frame_room(0);
    frame_done(MSG_GUEST_DATA, FLAG_EOF, source->pipe, source->stream->number, 0);
}

/* stdout and stderr mostly end because their command does: the host is told of that alone, if it comes soon. */
static void end_of_source(struct source *source)
{
    struct stream *stream = source->stream;
    source->untold = !source->drop;
    source_close(source);
    if (source->pipe == 3)
        source_tell(source);
    else if (source->untold && !stream->tell_at)
        set_due(stream->tell_at = now_us() + TELL_US);
}

/* Nothing is in a bounded pipe any more. Whether somebody still holds it is asked of the kernel: at its end it is not held. */
static void check_end(struct source *source)
{
    struct pollfd state = {.fd = source->fd, .events = POLLIN};
    if (source->fd >= 0 && poll(&state, 1, 0) > 0 && state.revents & POLLHUP && !(state.revents & POLLIN))
        end_of_source(source);
}

void source_pump(struct source *source)
{
    static u8 waste[MAX_PAYLOAD];
    if (source->fd < 0 || (source->bounded && !source->last && !source->drop))
        return;
    u64 room = source->drop ? 0 : sendable(source);
    size_t wanted = MAX_PAYLOAD;
    if (room) {
        if (!source->credit) {
            source_watch(source, 0);
            return;
        }
        wanted = wanted < source->credit ? wanted : source->credit;
        wanted = wanted < room ? wanted : (size_t)room;
    }
    u8 *to = room ? frame_room(wanted) : waste;
    ssize_t n = read(source->fd, to, wanted);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        if (source->bounded)
            source->last = 0;
        return;
    }
    if (n <= 0) { /* EIO is how a terminal says that its last user has gone */
        end_of_source(source);
        return;
    }
    if (room) {
        source->credit -= (u32)n;
        frame_done(MSG_GUEST_DATA, 0, source->pipe, source->stream->number, (size_t)n);
    }
    if (!source->drop)
        count_output(source, (size_t)n);
    if (source->bounded && !source->last && !source->drop)
        check_end(source);
    if (!source->credit && !source->drop && sendable(source))
        source_watch(source, 0);
}

void source_credit(struct source *source, u32 amount)
{
    if ((u64)source->credit + amount > (u64)1 << MAX_CREDIT_BITS)
        guest_fatal("protocol", "credit above 2^31", 0);
    if (source->fd < 0)
        return;
    source->credit += amount;
    if (source->credit)
        source_watch(source, 1);
}

/* The drain window has closed: what is in the pipe now is still sent, what is written from now on is not. */
void source_bound(struct source *source)
{
    int waiting = 0;
    if (source->fd < 0 || source->bounded)
        return;
    source->bounded = 1;
    source->last = ioctl(source->fd, FIONREAD, &waiting) ? MAX_PAYLOAD : (u64)waiting;
    if (!source->last)
        check_end(source);
}

void source_drop(struct source *source)
{
    source->drop = 1;
    source_watch(source, 1);
}

static void sink_watch(struct sink *sink, int wanted)
{
    if (sink->watched == wanted || sink->fd < 0)
        return;
    sink->watched = (u8)wanted;
    if (wanted)
        watch_fd(guest.poll, sink->fd, EPOLLOUT, &sink->watch);
    else
        unwatch_fd(guest.poll, sink->fd);
}

void sink_close(struct sink *sink)
{
    if (sink->fd < 0)
        return;
    sink_watch(sink, 0);
    buffer_free(&sink->queue);
    if (sink->socket)
        shutdown(sink->fd, SHUT_WR);
    if (!sink->shared)
        close(sink->fd);
    sink->fd = -1;
}

/* The command has taken (or will never take) so many bytes: the host may send as many again. */
static void give_back(struct sink *sink, size_t length, int at_once)
{
    sink->owed += (u32)length;
    if (sink->eof || !sink->owed || (!at_once && sink->owed < FIRST_CREDIT / 4))
        return;
    send_credit(sink->stream->number, sink->pipe, sink->owed);
    sink->credit += sink->owed;
    sink->owed = 0;
}

static void sink_push(struct sink *sink)
{
    while (sink->fd >= 0 && buffer_used(&sink->queue)) {
        ssize_t n = write(sink->fd, sink->queue.data + sink->queue.start, buffer_used(&sink->queue));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0) { /* nobody reads it any more: what comes is dropped, and the host is not made to wait */
            give_back(sink, buffer_used(&sink->queue), 1);
            sink_close(sink);
            return;
        }
        buffer_consume(&sink->queue, (size_t)n);
        give_back(sink, (size_t)n, 0);
    }
    int waiting = buffer_used(&sink->queue) > 0;
    if (!waiting && sink->eof) {
        static const u8 end_of_transmission = 4;
        if (sink->terminal)
            (void)!write(sink->fd, &end_of_transmission, 1);
        sink_close(sink);
        return;
    }
    sink_watch(sink, waiting);
}

static void sink_ready(struct watch *watch, u32 events)
{
    struct sink *sink = (struct sink *)watch;
    (void)events;
    if (sink->fd < 0)
        return;
    sink_push(sink);
    stream_settle(sink->stream);
}

void sink_open(struct stream *stream, u8 pipe, int fd, int shared)
{
    struct sink *sink = &stream->sinks[pipe == 3];
    sink->fd = fd;
    sink->shared = (u8)shared;
    sink->watch.ready = sink_ready;
}

void sink_data(struct sink *sink, const u8 *data, size_t length, int eof)
{
    if (sink->eof)
        guest_fatal("protocol", "DATA after EOF", 0);
    if (length > sink->credit)
        guest_fatal("protocol", "DATA above the credit", 0);
    sink->credit -= (u32)length;
    if (sink->fd < 0) { /* its reader has gone, or there never was one */
        sink->eof = (u8)eof;
        give_back(sink, length, 1);
        return;
    }
    if (!buffer_used(&sink->queue) && length) {
        ssize_t n = write(sink->fd, data, length);
        if (n > 0) {
            data += n;
            length -= (size_t)n;
            give_back(sink, (size_t)n, 0);
        }
    }
    if (buffer_append(&sink->queue, data, length))
        guest_fatal("memory", "the queue of a pipe", ENOMEM);
    sink->eof = (u8)eof;
    if (length || eof)
        sink_push(sink);
}
