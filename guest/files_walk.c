/* Directories: listing and removing, entry by entry through descriptors, so that no link and no race leads out of them. */
#include "files.h"

#include "entry.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAX_NAME = 65535, FLATTEN_DEPTH = 64 };

int is_dots(const char *name) { return name[0] == '.' && (!name[1] || (name[1] == '.' && !name[2])); }

struct listing {
    struct operation *op;
    u64 count, limit;
    struct buffer out, name; /* what is not written yet; the path of the directory with its "/" */
};

static int list_flush(struct listing *l)
{
    int err = write_out(l->op, l->out.data + l->out.start, buffer_used(&l->out));
    buffer_consume(&l->out, buffer_used(&l->out));
    return err;
}

static int list_entry(struct listing *l, const char *name, const struct stat *st)
{
    u8 head[STAT_SIZE + 2];
    size_t prefix = buffer_used(&l->name), length = strlen(name);
    if (prefix + length > MAX_NAME)
        return ENAMETOOLONG;
    put_stat(head, st);
    put_u16(head + STAT_SIZE, (u16)(prefix + length));
    if (buffer_append(&l->out, head, sizeof head) || buffer_append(&l->out, l->name.data, prefix) ||
        buffer_append(&l->out, name, length))
        return ENOMEM;
    l->count++;
    return buffer_used(&l->out) >= COPY_SIZE ? list_flush(l) : 0;
}

static int list_directory(struct listing *l, int fd);

static int list_below(struct listing *l, int dir, const char *name)
{
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) /* a directory that cannot be read, or has gone, or was replaced: it is listed, what it holds is not */
        return errno == EMFILE || errno == ENOMEM ? errno : 0;
    size_t before = l->name.end;
    int err = buffer_append(&l->name, name, strlen(name)) || buffer_append(&l->name, "/", 1) ? ENOMEM : 0;
    if (!err)
        err = list_directory(l, fd);
    l->name.end = before;
    close(fd);
    return err;
}

static int list_directory(struct listing *l, int fd)
{
    _Alignas(8) char raw[4096];
    long n;
    while ((n = syscall(SYS_getdents64, fd, raw, sizeof raw)) > 0)
        for (long at = 0; at < n;) {
            struct entry *entry = (struct entry *)(raw + at);
            struct stat st;
            at += entry->length;
            if (is_dots(entry->name))
                continue;
            if (l->count >= l->limit)
                return 0;
            if (fstatat(fd, entry->name, &st, AT_SYMLINK_NOFOLLOW)) {
                if (errno == ENOENT)
                    continue; /* it has gone in the meantime */
                return errno;
            }
            int err = list_entry(l, entry->name, &st);
            if (!err && l->op->run->options & OPT_RECURSIVE && S_ISDIR(st.st_mode))
                err = list_below(l, fd, entry->name);
            if (err)
                return err;
        }
    return n < 0 ? errno : 0;
}

void raise_descriptors(void)
{
    struct rlimit limit;
    if (!getrlimit(RLIMIT_NOFILE, &limit)) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int file_list(struct operation *op)
{
    const struct run *run = op->run;
    struct listing l = {.op = op, .limit = run->limit};
    int fd = open(run->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (run->options & OPT_NOFOLLOW ? O_NOFOLLOW : 0));
    if (fd < 0)
        return errno;
    raise_descriptors();
    int err = list_directory(&l, fd);
    if (!err)
        err = list_flush(&l);
    result_count(op, l.count);
    return err;
}

struct removal {
    int top; /* the directory that goes: what lies too deep is moved up into it */
    u64 count;
    int err; /* the first failure; the rest is removed all the same */
};

static void failed(struct removal *r, int err)
{
    if (!r->err && err != ENOENT)
        r->err = err;
}

static void remove_inside(struct removal *r, int fd, int depth);

static void remove_entry(struct removal *r, int dir, const char *name, int depth)
{
    if (!unlinkat(dir, name, 0)) {
        r->count++;
        return;
    }
    if (errno != EISDIR && errno != EPERM) {
        failed(r, errno);
        return;
    }
    int refused = errno;
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        failed(r, errno == ENOTDIR || errno == ELOOP ? refused : errno);
        return;
    }
    char flat[NAME_SIZE];
    random_name(flat);
    /* No recursion without end, and no descriptor for each of ten thousand levels. */
    if (depth < FLATTEN_DEPTH || renameat(dir, name, r->top, flat)) {
        remove_inside(r, fd, depth + 1);
        if (unlinkat(dir, name, AT_REMOVEDIR))
            failed(r, errno);
        else
            r->count++;
    }
    close(fd);
}

static void remove_inside(struct removal *r, int fd, int depth)
{
    _Alignas(8) char raw[2048];
    long n;
    if (depth > 2 * FLATTEN_DEPTH) {
        failed(r, ELOOP);
        return;
    }
    while ((n = syscall(SYS_getdents64, fd, raw, sizeof raw)) > 0)
        for (long at = 0; at < n;) {
            struct entry *entry = (struct entry *)(raw + at);
            at += entry->length;
            if (!is_dots(entry->name))
                remove_entry(r, fd, entry->name, depth);
        }
    if (n < 0)
        failed(r, errno);
}

int file_remove(struct operation *op)
{
    const struct run *run = op->run;
    struct removal r = {.top = -1};
    char *base, *path = run->path;
    int dir;
    for (size_t length = strlen(path); length > 1 && path[length - 1] == '/';)
        path[--length] = 0;
    int err = split_path(path, &base, &dir);
    if (err)
        return err == EISDIR ? EINVAL : err;
    struct stat st;
    if (fstatat(dir, base, &st, AT_SYMLINK_NOFOLLOW))
        return errno;
    if (S_ISDIR(st.st_mode) && run->options & OPT_RECURSIVE) {
        r.top = openat(dir, base, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (r.top < 0)
            return errno;
        for (u64 before = UINT64_MAX; before != r.count;) {
            before = r.count;
            r.err = 0;
            lseek(r.top, 0, SEEK_SET);
            remove_inside(&r, r.top, 0);
        }
    }
    if (unlinkat(dir, base, S_ISDIR(st.st_mode) ? AT_REMOVEDIR : 0))
        return r.err ? r.err : errno;
    result_count(op, r.count + 1);
    return 0;
}
