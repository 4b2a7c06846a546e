/* Every file of a sandbox as one line. Nothing is followed and nothing is left by a race: each is reached from its directory's
 * descriptor. What a file system says of itself (times of access, numbers of inodes and devices) is left out. */
#include "fingerprint.h"

#include "entry.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { DEPTH_MAX = 500, ATTRIBUTE_MOST = 65536 }; /* as the kernel has it, of the names of all and of one's value */
enum { PROC_MAGIC = 0x9fa0, TMPFS_MAGIC = 0x01021994, DEVPTS_MAGIC = 0x1cd1, MQUEUE_MAGIC = 0x19800202 };

struct walk {
    struct lines *lines;
    u64 since;
    char *const *skip;
    dev_t device;      /* of the directory that is walked */
    u16 depth;
    u8 written; /* it lies on a file system that is empty at first */
    struct buffer path;
};

static u64 nanoseconds(const struct timespec *at) { return (u64)at->tv_sec * 1000000000 + (u64)at->tv_nsec; }

static void put_digest(struct lines *l, const char *name, const u8 *digest)
{
    char text[65];
    for (int i = 0; i < 64; i++)
        text[i] = "0123456789abcdef"[digest[i / 2] >> (i % 2 ? 0 : 4) & 15];
    text[64] = 0;
    line_text(l, name);
    line_bytes(l, text, 64);
}

static void put_content(struct lines *l, int dir, const char *name)
{
    u8 *data = malloc(COPY_SIZE);
    struct sha256 sum;
    u8 digest[32];
    struct stat st;
    ssize_t n = -1;
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (data && fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode)) {
        sha256_begin(&sum);
        while ((n = read(fd, data, COPY_SIZE)) > 0)
            sha256_add(&sum, data, (size_t)n);
        sha256_end(&sum, digest);
    }
    if (n < 0)
        line_number(l, "unreadable ", (u64)errno, 10);
    else
        put_digest(l, "sha256 ", digest);
    free(data);
    if (fd >= 0)
        close(fd);
}

/* There is no call that takes a descriptor and a name before Linux 6.13: so the directory that is walked is the current one. */
static void put_attributes(struct lines *l, const char *name)
{
    char *names = malloc(2 * ATTRIBUTE_MOST), *value = names + ATTRIBUTE_MOST;
    ssize_t length = names ? llistxattr(name, names, ATTRIBUTE_MOST) : -1;
    for (char *at = names; length > 0 && at < names + length; at += strlen(at) + 1) {
        struct sha256 sum;
        u8 digest[32];
        ssize_t n = lgetxattr(name, at, value, ATTRIBUTE_MOST);
        sha256_begin(&sum);
        sha256_add(&sum, (u8 *)value, n > 0 ? (size_t)n : 0);
        sha256_end(&sum, digest);
        line_text(l, at);
        put_digest(l, "sha256 ", digest);
    }
    free(names);
}

static void put_name(struct walk *w, const char *name)
{
    line_begin(w->lines, PART_FILES);
    line_bytes(w->lines, w->path.data, w->path.end);
    line_bytes(w->lines, name, strlen(name));
}

/* `mounted`: the root of another file system, whose owner, size and times tell of the file system and not of the sandbox. */
static void put_entry(struct walk *w, int dir, const char *name, const struct stat *st, int mounted)
{
    struct lines *l = w->lines;
    char target[PATH_MAX];
    u64 changed = nanoseconds(&st->st_ctim);
    int fresh = w->written || changed >= w->since;
    put_name(w, name);
    line_number(l, "", st->st_mode, 8);
    if (mounted) {
        line_text(l, "mounted");
        line_end(l);
        return;
    }
    line_number(l, "", st->st_uid, 10);
    line_number(l, "", st->st_gid, 10);
    line_number(l, "links ", (u64)st->st_nlink, 10);
    if (S_ISCHR(st->st_mode) || S_ISBLK(st->st_mode))
        line_number(l, "device ", st->st_rdev, 16);
    else
        line_number(l, "size ", (u64)st->st_size, 10);
    if (S_ISLNK(st->st_mode)) {
        ssize_t n = readlinkat(dir, name, target, sizeof target);
        line_text(l, "-> ");
        line_bytes(l, target, n > 0 ? (size_t)n : 0);
    }
    if (fresh) {
        line_text(l, "new");
    } else {
        line_number(l, "modified ", nanoseconds(&st->st_mtim), 10);
        line_number(l, "changed ", changed, 10);
    }
    if (fresh && S_ISREG(st->st_mode))
        put_content(l, dir, name);
    put_attributes(l, name);
    line_end(l);
}

static void enter(struct walk *w, int fd)
{
    if (fchdir(fd))
        w->lines->err = errno;
}

static int is_skipped(const struct walk *w, const char *name)
{
    size_t above = w->path.end, length = strlen(name);
    for (char *const *path = w->skip; *path; path++)
        if (strlen(*path) == above + length && !memcmp(*path, w->path.data, above) && !memcmp(*path + above, name, length))
            return 1;
    return 0;
}

static void walk_directory(struct walk *w, int fd);

static void walk_below(struct walk *w, int dir, const char *name, dev_t device)
{
    const struct walk before = *w;
    struct statfs kind;
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || w->depth == DEPTH_MAX) {
        put_name(w, name);
        line_number(w->lines, "cannot be walked ", fd < 0 ? (u64)errno : ELOOP, 10);
        line_end(w->lines);
    } else if (buffer_append(&w->path, name, strlen(name)) || buffer_append(&w->path, "/", 1)) {
        w->lines->err = ENOMEM;
    } else if (!fstatfs(fd, &kind) && kind.f_type != PROC_MAGIC) {
        w->depth++;
        if (device != w->device) {
            w->device = device;
            w->written = kind.f_type == TMPFS_MAGIC || kind.f_type == DEVPTS_MAGIC || kind.f_type == MQUEUE_MAGIC;
        }
        walk_directory(w, fd);
    }
    struct buffer path = w->path; /* its memory may have moved */
    *w = before;
    path.end = before.path.end;
    w->path = path;
    if (fd >= 0)
        close(fd);
}

static void walk_directory(struct walk *w, int fd)
{
    _Alignas(8) char raw[4096];
    long n;
    enter(w, fd);
    while (!w->lines->err && (n = syscall(SYS_getdents64, fd, raw, sizeof raw)) > 0)
        for (long at = 0; at < n && !w->lines->err;) {
            struct entry *entry = (struct entry *)(raw + at);
            struct stat st;
            at += entry->length;
            if (!strcmp(entry->name, ".") || !strcmp(entry->name, ".."))
                continue;
            if (is_skipped(w, entry->name)) {
                put_name(w, entry->name);
                line_text(w->lines, "not looked at");
                line_end(w->lines);
            } else if (!fstatat(fd, entry->name, &st, AT_SYMLINK_NOFOLLOW)) { /* else it has gone in the meantime */
                put_entry(w, fd, entry->name, &st, S_ISDIR(st.st_mode) && st.st_dev != w->device);
                if (S_ISDIR(st.st_mode)) {
                    walk_below(w, fd, entry->name, st.st_dev);
                    enter(w, fd);
                }
            }
        }
}

void fingerprint_files(struct lines *l, u64 since, char *const *skip)
{
    struct walk w = {.lines = l, .since = since, .skip = skip};
    struct rlimit limit;
    struct stat st;
    int fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) || buffer_append(&w.path, "/", 1)) {
        l->err = errno;
        return;
    }
    if (!getrlimit(RLIMIT_NOFILE, &limit)) { /* a descriptor for each level */
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    w.device = st.st_dev;
    enter(&w, fd);
    put_entry(&w, fd, ".", &st, 0);
    walk_directory(&w, fd);
    buffer_free(&w.path);
    close(fd);
}
