/* Lines that describe a sandbox, and the lines of the files in /proc that they are made of. */
#include "fingerprint.h"

#include "entry.h"
#include "tree.h"

#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

void line_begin(struct lines *l, u8 part)
{
    if (l->fd >= 0 && l->size - l->used < LINE_HEADER + LINE_MAX_SIZE) {
        if (!l->err)
            l->err = write_all(l->fd, l->data, l->used);
        l->used = 0;
    }
    l->start = l->used;
    if (l->size - l->used < LINE_HEADER)
        return;
    l->data[l->used] = part;
    l->used += LINE_HEADER;
}

void line_bytes(struct lines *l, const void *data, size_t length)
{
    size_t room = l->size - l->used;
    if (l->used < l->start + LINE_HEADER)
        return;
    if (room > l->start + LINE_HEADER + LINE_MAX_SIZE - l->used)
        room = l->start + LINE_HEADER + LINE_MAX_SIZE - l->used;
    if (length > room)
        length = room;
    memcpy(l->data + l->used, data, length);
    l->used += length;
}

void line_text(struct lines *l, const char *text)
{
    if (l->used > l->start + LINE_HEADER)
        line_bytes(l, " ", 1);
    line_bytes(l, text, strlen(text));
}

void line_number(struct lines *l, const char *name, u64 number, unsigned base)
{
    char digits[24], *at = digits + sizeof digits - 1;
    *at = 0;
    do
        *--at = "0123456789abcdef"[number % base];
    while (number /= base);
    line_text(l, name);
    line_bytes(l, at, strlen(at));
}

void line_end(struct lines *l)
{
    if (l->used >= l->start + LINE_HEADER)
        put_u16(l->data + l->start + 1, (u16)(l->used - l->start - LINE_HEADER));
}

int reader_open(struct reader *r, const char *path)
{
    *r = (struct reader){.fd = -1};
    if (tree_proc() >= 0)
        r->fd = openat(tree_proc(), path, O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    return r->fd >= 0;
}

char *reader_next(struct reader *r)
{
    char *line, *stop;
    while (!(stop = memchr(line = r->data + r->start, '\n', r->end - r->start)) && !r->over) {
        memmove(r->data, line, r->end - r->start);
        r->end -= r->start;
        r->start = 0;
        ssize_t n = r->end < sizeof r->data - 1 ? read(r->fd, r->data + r->end, sizeof r->data - 1 - r->end) : 0;
        if (n <= 0 && r->end == sizeof r->data - 1)
            break;
        if (n <= 0)
            r->over = 1;
        else
            r->end += (size_t)n;
    }
    if (!stop && r->start == r->end) {
        close(r->fd);
        return NULL;
    }
    size_t at = stop ? (size_t)(stop - r->data) : r->end;
    r->data[at] = 0;
    r->start = at + (at < r->end);
    return line;
}

char *next_word(char **at)
{
    char *word = *at, *end;
    while (*word == ' ' || *word == '\t')
        word++;
    for (end = word; *end && *end != ' ' && *end != '\t'; end++)
        ;
    *at = end + (*end != 0);
    *end = 0;
    return word;
}

void line_copy(struct lines *l, u8 part, const char *path, int skip, const char *name)
{
    struct reader r;
    char *line;
    if (!reader_open(&r, path))
        return;
    while ((line = reader_next(&r))) {
        if (skip-- > 0)
            continue;
        line_begin(l, part);
        if (*name)
            line_text(l, name);
        line_text(l, line);
        line_end(l);
    }
}

void each_name(struct lines *l, int fd, take_name *take)
{
    _Alignas(8) char raw[4096];
    long n;
    while ((n = syscall(SYS_getdents64, fd, raw, sizeof raw)) > 0)
        for (long at = 0; at < n;) {
            struct entry *entry = (struct entry *)(raw + at);
            at += entry->length;
            if (strcmp(entry->name, ".") != 0 && strcmp(entry->name, "..") != 0)
                take(l, entry->name);
        }
}
