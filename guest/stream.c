#include "stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

static struct stream **bucket(u32 number) { return &guest.buckets[number % BUCKETS]; }

struct stream *stream_find(u32 number)
{
    struct stream *s = *bucket(number);
    while (s && (s->number != number || s->closed))
        s = s->next;
    return s;
}

struct stream *stream_new(u32 number, u8 kind)
{
    struct stream *s = guest.stream_count < MAX_STREAMS ? calloc(1, sizeof *s) : NULL;
    if (!s)
        return NULL;
    s->number = number;
    s->kind = kind;
    s->control = s->shared_fd = -1;
    s->began_us = now_us();
    for (u8 i = 0; i < 3; i++)
        s->sources[i] = (struct source){.stream = s, .fd = -1, .pipe = (u8)(i + 1)};
    for (u8 i = 0; i < 2; i++)
        s->sinks[i] = (struct sink){.stream = s, .fd = -1, .pipe = (u8)(i ? 3 : 0), .credit = FIRST_CREDIT};
    s->next = *bucket(number);
    *bucket(number) = s;
    guest.stream_count++;
    return s;
}

void stream_finish(struct stream *s, u8 type, const struct fields *fields)
{
    s->ended = 1;
    s->final = malloc(HEADER_SIZE + fields->length);
    if (!s->final)
        guest_fatal("memory", "the end of a stream", ENOMEM);
    put_header(s->final, (u32)fields->length, type, 0, 0, s->number);
    memcpy(s->final + HEADER_SIZE, fields->data, fields->length);
    s->final_length = HEADER_SIZE + fields->length;
    stream_resend(s);
}

void stream_resend(const struct stream *s)
{
    if (s->final)
        send_frame(s->final[4], s->number, s->final + HEADER_SIZE, s->final_length - HEADER_SIZE);
}

static void close_all(struct stream *s)
{
    for (int i = 0; i < 3; i++)
        source_close(&s->sources[i]);
    for (int i = 0; i < 2; i++)
        sink_close(&s->sinks[i]);
    if (s->connecting)
        unwatch_fd(guest.poll, s->shared_fd);
    s->connecting = 0;
    if (s->shared_fd >= 0)
        close(s->shared_fd);
    s->shared_fd = -1;
}

void stream_refuse(u32 number, struct stream *s, const char *step, int err, const char *text)
{
    struct fields f = {.length = 0};
    char sentence[200] = "";
    text_add(sentence, sizeof sentence, text);
    if (err) {
        text_add(sentence, sizeof sentence, ": ");
        text_add(sentence, sizeof sentence, strerror(err));
    }
    field_text(&f, 1, step);
    field_u32(&f, 2, (u32)err);
    field_text(&f, 3, sentence);
    if (!s) {
        send_frame(MSG_REFUSED, number, f.data, f.length);
        return;
    }
    close_all(s);
    stream_finish(s, MSG_REFUSED, &f);
}

void stream_close(struct stream *s)
{
    s->closed = 1;
    free(s->final);
    s->final = NULL;
    stream_release(s);
}

void stream_release(struct stream *s)
{
    if (!s->closed || s->dead || s->control >= 0 || s->supervisor)
        return;
    for (int i = 0; i < 3; i++)
        if (s->sources[i].fd >= 0)
            return;
    struct stream **link = bucket(s->number);
    while (*link != s)
        link = &(*link)->next;
    *link = s->next;
    close_all(s);
    s->dead = 1; /* events of this round may still point to it */
    s->grave = guest.graves;
    guest.graves = s;
    guest.stream_count--;
}

void streams_bury(void)
{
    while (guest.graves) {
        struct stream *s = guest.graves;
        guest.graves = s->grave;
        free(s->final);
        free(s);
    }
}

void stream_settle(struct stream *s)
{
    if (s->dead)
        return;
    if (s->ended) {
        int open = 0;
        for (int i = 0; i < 3; i++)
            open |= s->sources[i].fd >= 0;
        if (!open && s->control < 0)
            close_all(s);
        stream_release(s);
    } else if (s->kind == STREAM_CONNECT) {
        connect_settle(s);
    } else if (s->kind != STREAM_RECORD) {
        command_settle(s);
    }
}
