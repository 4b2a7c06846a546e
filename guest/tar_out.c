/* A directory as a tar archive: every entry is reached through the descriptor of the directory that holds it. */
#include "files.h"
#include "tar.h"

#include "entry.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { PROC_MAGIC = 0x9fa0, SYS_MAGIC = 0x62656572, FIRST_ROOM = 256 };

/* About the years -33,000 and 37,000. A file may claim any time; what is further off would not be read back by everybody. */
static const int64_t FURTHEST = (int64_t)1 << 40;

/* A file with more than one name, and the first of them. */
struct name {
    dev_t device;
    ino_t inode;
    char *path;
};

struct packing {
    struct operation *op;
    struct tar_entry entry; /* entry.path is where we are */
    size_t length;          /* of it */
    dev_t device;           /* of the directory that we are in */
    struct name *names;     /* a hash table */
    size_t name_count, name_room;
    u64 entries, bytes, left_out;
    size_t used;
    u8 out[COPY_SIZE + TAR_HEADER_MOST];
};

static int flush(struct packing *p)
{
    int err = write_out(p->op, p->out, p->used);
    p->used = 0;
    return err;
}

static int put(struct packing *p, const void *data, size_t length)
{
    int err = p->used + length > COPY_SIZE ? flush(p) : 0;
    if (err)
        return err;
    if (data)
        memcpy(p->out + p->used, data, length);
    else
        memset(p->out + p->used, 0, length);
    p->used += length;
    return 0;
}

static int put_entry(struct packing *p)
{
    int err = p->used + TAR_HEADER_MOST > sizeof p->out ? flush(p) : 0;
    if (err)
        return err;
    p->used += tar_header(p->out + p->used, &p->entry);
    p->entries++;
    return cancelled(p->op) ? ECANCELED : 0;
}

static struct name *slot(struct name *names, size_t room, dev_t device, ino_t inode)
{
    size_t at = (size_t)(((u64)inode ^ (u64)device << 40) * 0x9e3779b97f4a7c15u >> 20) & (room - 1);
    while (names[at].path && (names[at].device != device || names[at].inode != inode))
        at = (at + 1) & (room - 1);
    return &names[at];
}

static int grow(struct packing *p)
{
    size_t room = p->name_room ? 2 * p->name_room : FIRST_ROOM;
    struct name *names = calloc(room, sizeof *names);
    if (!names)
        return ENOMEM;
    for (size_t i = 0; i < p->name_room; i++)
        if (p->names[i].path)
            *slot(names, room, p->names[i].device, p->names[i].inode) = p->names[i];
    free(p->names);
    p->names = names;
    p->name_room = room;
    return 0;
}

/* 1: the file is in the archive under a name that is entry.target now. 0: it is not, and this is its first name. */
static int seen(struct packing *p, const struct stat *st, int *err)
{
    if (2 * p->name_count >= p->name_room && (*err = grow(p)))
        return 0;
    struct name *name = slot(p->names, p->name_room, st->st_dev, st->st_ino);
    if (name->path) {
        strcpy(p->entry.target, name->path);
        return 1;
    }
    *name = (struct name){.device = st->st_dev, .inode = st->st_ino, .path = strdup(p->entry.path)};
    p->name_count++;
    *err = name->path ? 0 : ENOMEM;
    return 0;
}

static void describe(struct packing *p, u8 type, const struct stat *st)
{
    struct tar_entry *e = &p->entry;
    e->type = type;
    e->mode = st->st_mode & 07777;
    e->uid = st->st_uid;
    e->gid = st->st_gid;
    e->size = type == TAR_FILE ? (u64)st->st_size : 0;
    e->seconds = st->st_mtim.tv_sec < -FURTHEST ? -FURTHEST : st->st_mtim.tv_sec > FURTHEST ? FURTHEST : st->st_mtim.tv_sec;
    e->nanoseconds = (u32)st->st_mtim.tv_nsec;
    e->major = e->minor = 0;
    e->target[0] = 0;
}

/* Exactly the bytes that the header has promised. EIO: there are not so many any more. */
static int put_content(struct packing *p, int fd, u64 size)
{
    for (u64 left = size; left;) {
        if (p->used >= COPY_SIZE) {
            int err = flush(p);
            if (err || cancelled(p->op))
                return err ? err : ECANCELED;
        }
        size_t room = COPY_SIZE - p->used;
        ssize_t n = read(fd, p->out + p->used, left < room ? (size_t)left : room);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n ? errno : EIO;
        p->used += (size_t)n;
        p->bytes += (u64)n;
        left -= (u64)n;
    }
    return put(p, NULL, (TAR_BLOCK - size % TAR_BLOCK) % TAR_BLOCK);
}

static int pack_file(struct packing *p, int dir, const char *name)
{
    struct stat st;
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? 0 : errno; /* it has gone in the meantime */
    int err = fstat(fd, &st) ? errno : S_ISREG(st.st_mode) ? 0 : EIO; /* it was replaced in the meantime */
    if (!err) {
        describe(p, TAR_FILE, &st);
        if (st.st_nlink > 1 && seen(p, &st, &err)) {
            p->entry.type = TAR_HARD_LINK;
            p->entry.size = 0;
        }
    }
    if (!err)
        err = put_entry(p);
    if (!err && p->entry.type == TAR_FILE)
        err = put_content(p, fd, p->entry.size);
    close(fd);
    return err;
}

static int pack_link(struct packing *p, int dir, const char *name, const struct stat *st)
{
    describe(p, TAR_SYMLINK, st);
    ssize_t n = readlinkat(dir, name, p->entry.target, TAR_PATH - 1);
    if (n < 0)
        return errno == ENOENT ? 0 : errno;
    p->entry.target[n] = 0;
    return put_entry(p);
}

static int pack_device(struct packing *p, const struct stat *st)
{
    describe(p, S_ISFIFO(st->st_mode) ? TAR_FIFO : S_ISCHR(st->st_mode) ? TAR_CHARACTER : TAR_BLOCK_DEVICE, st);
    p->entry.major = S_ISFIFO(st->st_mode) ? 0 : major(st->st_rdev);
    p->entry.minor = S_ISFIFO(st->st_mode) ? 0 : minor(st->st_rdev);
    return put_entry(p);
}

static int pack_inside(struct packing *p, int fd, int depth);

/* What the kernel makes up is nobody's tree: /proc and /sys are there as the empty directories that they are mounted on. */
static int is_made_up(int fd)
{
    struct statfs fs;
    return !fstatfs(fd, &fs) && ((u32)fs.f_type == PROC_MAGIC || (u32)fs.f_type == SYS_MAGIC);
}

static int pack_directory(struct packing *p, int dir, const char *name, int depth)
{
    struct stat st;
    dev_t outer = p->device;
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? 0 : errno;
    int err = fstat(fd, &st) ? errno : 0;
    if (!err) {
        describe(p, TAR_DIRECTORY, &st);
        err = put_entry(p);
    }
    if (!err && (st.st_dev == outer || !is_made_up(fd))) {
        p->device = st.st_dev;
        err = pack_inside(p, fd, depth);
        p->device = outer;
    }
    close(fd);
    return err;
}

static int pack_entry(struct packing *p, int dir, const char *name, int depth)
{
    struct stat st;
    size_t before = p->length, length = strlen(name), slash = before > 0;
    if (before + slash + length >= TAR_PATH || depth >= TAR_DEPTH)
        return ENAMETOOLONG;
    if (slash)
        p->entry.path[before] = '/';
    memcpy(p->entry.path + before + slash, name, length + 1);
    p->length = before + slash + length;
    int err = 0;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW))
        err = errno == ENOENT ? 0 : errno;
    else if (S_ISDIR(st.st_mode))
        err = pack_directory(p, dir, name, depth + 1);
    else if (S_ISREG(st.st_mode))
        err = pack_file(p, dir, name);
    else if (S_ISLNK(st.st_mode))
        err = pack_link(p, dir, name, &st);
    else if (S_ISSOCK(st.st_mode))
        p->left_out++; /* an archive has no way to say it, and nothing is lost */
    else
        err = pack_device(p, &st);
    if (err) /* the path stays, to be told */
        return err;
    p->length = before;
    p->entry.path[before] = 0;
    return 0;
}

static int pack_inside(struct packing *p, int fd, int depth)
{
    _Alignas(8) char raw[2048];
    long n;
    while ((n = syscall(SYS_getdents64, fd, raw, sizeof raw)) > 0)
        for (long at = 0; at < n;) {
            struct entry *entry = (struct entry *)(raw + at);
            at += entry->length;
            if (is_dots(entry->name))
                continue;
            int err = pack_entry(p, fd, entry->name, depth);
            if (err)
                return err;
        }
    return n < 0 ? errno : 0;
}

int file_read_tree(struct operation *op)
{
    const struct run *run = op->run;
    struct stat st;
    struct packing *p = calloc(1, sizeof *p);
    if (!p)
        return ENOMEM;
    int fd = open(run->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (run->options & OPT_NOFOLLOW ? O_NOFOLLOW : 0));
    if (fd < 0 || fstat(fd, &st))
        return errno;
    raise_descriptors();
    p->op = op;
    p->device = st.st_dev;
    int err = pack_inside(p, fd, 0);
    if (!err)
        err = put(p, NULL, 2 * TAR_BLOCK);
    if (!err)
        err = flush(p);
    if (err)
        (void)write_all(op->ends->err, p->entry.path, strlen(p->entry.path));
    result_tree(op, p->entries, p->bytes, p->left_out);
    return err;
}
