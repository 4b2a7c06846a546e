#include "frame.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

u16 get_u16(const u8 *at) { return (u16)(at[0] | at[1] << 8); }
u32 get_u32(const u8 *at) { return at[0] | (u32)at[1] << 8 | (u32)at[2] << 16 | (u32)at[3] << 24; }
u64 get_u64(const u8 *at) { return get_u32(at) | (u64)get_u32(at + 4) << 32; }

void put_u16(u8 *at, u16 value)
{
    at[0] = (u8)value;
    at[1] = (u8)(value >> 8);
}

void put_u32(u8 *at, u32 value)
{
    put_u16(at, (u16)value);
    put_u16(at + 2, (u16)(value >> 16));
}

void put_u64(u8 *at, u64 value)
{
    put_u32(at, (u32)value);
    put_u32(at + 4, (u32)(value >> 32));
}

int buffer_reserve(struct buffer *b, size_t room)
{
    if (b->start == b->end)
        b->start = b->end = 0;
    if (b->size - b->end >= room)
        return 0;
    if (b->start) {
        memmove(b->data, b->data + b->start, b->end - b->start);
        b->end -= b->start;
        b->start = 0;
        if (b->size - b->end >= room)
            return 0;
    }
    size_t size = b->size ? b->size : 256;
    while (size - b->end < room)
        size *= 2;
    u8 *data = realloc(b->borrowed ? NULL : b->data, size);
    if (!data)
        return -1;
    if (b->borrowed)
        memcpy(data, b->data, b->end);
    b->data = data;
    b->size = size;
    b->borrowed = 0;
    return 0;
}

int buffer_append(struct buffer *b, const void *data, size_t length)
{
    if (!length)
        return 0;
    if (buffer_reserve(b, length))
        return -1;
    memcpy(b->data + b->end, data, length);
    b->end += length;
    return 0;
}

void buffer_consume(struct buffer *b, size_t length)
{
    b->start += length;
    if (b->start == b->end)
        b->start = b->end = 0;
}

void buffer_free(struct buffer *b)
{
    if (!b->borrowed)
        free(b->data);
    memset(b, 0, sizeof *b);
}

/* RUN messages of which the last frame has not come. */
struct partial {
    struct partial *next;
    struct buffer bytes;
    u32 stream;
    u8 fresh;
};

enum { MAX_PARTIALS = 1024 };

static int violation(struct parser *p, const char *error)
{
    p->error = error;
    return -1;
}

/* What each type of the host allows: exact payload length (or -1), which stream, which pipes. */
static const char *header_error(const struct parser *p, u32 length, u8 type, u8 flags, u16 pipe, u32 stream)
{
    static const signed char exact[] = {[MSG_HELLO] = -1, [MSG_RUN] = -1, [MSG_DATA] = -1, [MSG_CREDIT] = 4,
                                        [MSG_SIGNAL] = 5, [MSG_RESIZE] = 4, [MSG_KILL] = 0, [MSG_KILL_ALL] = 0,
                                        [MSG_LIST] = 0, [MSG_CONNECT] = -1, [MSG_CLOSE] = 0, [MSG_PING] = -1,
                                        [MSG_LOOK] = 0};
    if (length > MAX_PAYLOAD)
        return "frame above 65536 bytes";
    if (type < MSG_HELLO || type > MSG_LOOK)
        return "unknown frame type";
    if ((type == MSG_HELLO) == p->greeted)
        return "HELLO comes first, and once";
    if (flags && !(flags == FLAG_MORE && type == MSG_RUN) && !(flags == FLAG_EOF && type == MSG_DATA))
        return "flags that the frame type does not have";
    if (type == MSG_DATA ? pipe != 0 && pipe != 3 : type == MSG_CREDIT ? pipe < 1 || pipe > 3 : pipe != 0)
        return "pipe that the frame type does not have";
    if ((type == MSG_HELLO || type == MSG_PING || type == MSG_LOOK) != (stream == 0))
        return "stream that the frame type does not have";
    if ((exact[type] >= 0 && length != (u32)exact[type]) || (type == MSG_PING && length > 64))
        return "payload length that the frame type does not have";
    return NULL;
}

static void drop_partial(struct parser *p, struct partial **link)
{
    struct partial *part = *link;
    *link = part->next;
    buffer_free(&part->bytes);
    free(part);
    p->partial_count--;
}

/* Adds one frame of a RUN. 1: the message is whole, in *m. 0: not yet. */
static int gather(struct parser *p, struct message *m)
{
    struct partial **link = &p->partials;
    while (*link && (*link)->stream != m->stream)
        link = &(*link)->next;
    struct partial *part = *link;
    if (!part) {
        if (!(m->flags & FLAG_MORE))
            return 1;
        if (p->partial_count >= MAX_PARTIALS)
            return violation(p, "more than 1024 unfinished messages");
        part = calloc(1, sizeof *part);
        if (!part)
            return violation(p, "out of memory");
        part->stream = m->stream;
        part->fresh = m->fresh;
        *link = part;
        p->partial_count++;
    }
    if (buffer_used(&part->bytes) + m->length > MAX_MESSAGE)
        return violation(p, "message above 16 MiB");
    if (buffer_append(&part->bytes, m->payload, m->length))
        return violation(p, "out of memory");
    if (m->flags & FLAG_MORE)
        return 0;
    if (buffer_reserve(&part->bytes, 1))
        return violation(p, "out of memory");
    m->fresh = part->fresh;
    m->owned = part->bytes.data;
    m->payload = part->bytes.data;
    m->length = buffer_used(&part->bytes);
    part->bytes.data = NULL;
    drop_partial(p, link);
    return 1;
}

int parser_next(struct parser *p, struct message *m)
{
    for (;;) {
        const u8 *raw = p->in.data + p->in.start;
        size_t have = buffer_used(&p->in);
        if (have < HEADER_SIZE)
            return 0;
        u32 length = get_u32(raw);
        *m = (struct message){.type = raw[4], .flags = raw[5], .pipe = get_u16(raw + 6), .stream = get_u32(raw + 8)};
        const char *error = header_error(p, length, m->type, m->flags, m->pipe, m->stream);
        if (error)
            return violation(p, error);
        if (have < HEADER_SIZE + length)
            return 0;
        m->payload = raw + HEADER_SIZE;
        m->length = length;
        p->in.start += HEADER_SIZE + length; /* the bytes stay where they are until the buffer is filled again */
        p->greeted = 1;
        if (m->type == MSG_RUN || m->type == MSG_CONNECT || m->type == MSG_KILL_ALL || m->type == MSG_LIST) {
            m->fresh = m->stream > p->highest;
            if (m->fresh)
                p->highest = m->stream;
        }
        if (m->type != MSG_RUN)
            return 1;
        int whole = gather(p, m);
        if (whole)
            return whole;
    }
}

void parser_free(struct parser *p)
{
    while (p->partials)
        drop_partial(p, &p->partials);
    buffer_free(&p->in);
}

int field_next(const u8 **at, const u8 *end, struct field *f)
{
    size_t left = (size_t)(end - *at);
    if (!left)
        return 0;
    if (left < FIELD_HEADER_SIZE)
        return -1;
    f->tag = (*at)[0];
    f->length = get_u32(*at + 1);
    if (f->length > left - FIELD_HEADER_SIZE)
        return -1;
    f->value = *at + FIELD_HEADER_SIZE;
    *at = f->value + f->length;
    return 1;
}

void put_header(u8 *at, u32 length, u8 type, u8 flags, u16 pipe, u32 stream)
{
    put_u32(at, length);
    at[4] = type;
    at[5] = flags;
    put_u16(at + 6, pipe);
    put_u32(at + 8, stream);
}

void field_bytes(struct fields *f, u8 tag, const void *data, size_t length)
{
    size_t room = sizeof f->data - f->length;
    if (room < FIELD_HEADER_SIZE)
        return;
    if (length > room - FIELD_HEADER_SIZE)
        length = room - FIELD_HEADER_SIZE;
    u8 *at = f->data + f->length;
    at[0] = tag;
    put_u32(at + 1, (u32)length);
    memcpy(at + FIELD_HEADER_SIZE, data, length);
    f->length += FIELD_HEADER_SIZE + length;
}

void field_text(struct fields *f, u8 tag, const char *text) { field_bytes(f, tag, text, strlen(text)); }
void field_u8(struct fields *f, u8 tag, u8 value) { field_bytes(f, tag, &value, 1); }

void field_u32(struct fields *f, u8 tag, u32 value)
{
    u8 raw[4];
    put_u32(raw, value);
    field_bytes(f, tag, raw, sizeof raw);
}

void field_u64(struct fields *f, u8 tag, u64 value)
{
    u8 raw[8];
    put_u64(raw, value);
    field_bytes(f, tag, raw, sizeof raw);
}

void text_add(char *to, size_t size, const char *text)
{
    size_t used = strlen(to), length = strlen(text);
    if (length > size - used - 1)
        length = size - used - 1;
    memcpy(to + used, text, length);
    to[used + length] = 0;
}

void text_add_number(char *to, size_t size, u64 number)
{
    char digits[24];
    size_t at = sizeof digits;
    digits[--at] = 0;
    do
        digits[--at] = (char)('0' + number % 10);
    while (number /= 10);
    text_add(to, size, digits + at);
}

void send_fatal(int fd, const char *step, const char *what, int err)
{
    char text[400] = "";
    text_add(text, sizeof text, step);
    text_add(text, sizeof text, ": ");
    text_add(text, sizeof text, what);
    if (err) {
        text_add(text, sizeof text, ": ");
        text_add(text, sizeof text, strerror(err));
    }
    struct fields f = {.length = 0};
    field_text(&f, 1, text);
    u8 frame[HEADER_SIZE + sizeof f.data];
    put_header(frame, (u32)f.length, MSG_FATAL, 0, 0, 0);
    memcpy(frame + HEADER_SIZE, f.data, f.length);
    size_t length = HEADER_SIZE + f.length, done = 0;
    while (done < length) {
        ssize_t n = write(fd, frame + done, length - done);
        if (n > 0) {
            done += (size_t)n;
            continue;
        }
        struct pollfd wait = {.fd = fd, .events = POLLOUT};
        if (n < 0 && (errno == EAGAIN || errno == EINTR) && poll(&wait, 1, 1000) > 0)
            continue;
        return;
    }
}
