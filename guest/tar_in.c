/* A tar archive into a directory. Each name is made below descriptors that were opened without following any link. */
#include "files.h"
#include "tar.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A directory that we made: it gets its mode and time last, since what lies in it changes the one and may need the other. */
struct made {
    char *path;
    u32 depth, mode, index;
    uid_t uid;
    gid_t gid;
    struct timespec time;
};

struct extraction {
    struct operation *op;
    struct tar_reader reader;
    struct tar_entry entry;
    int root, parent;             /* the directory of the latest entry stays open: the next one is mostly in it too */
    char parent_path[TAR_PATH];
    struct user owner;
    struct made *made;
    u32 made_count, made_room;
    u64 entries, bytes;
};

static ssize_t receive(void *from, u8 *to, size_t room)
{
    const struct ends *ends = from;
    for (;;) {
        struct pollfd wait[2] = {{.fd = ends->in, .events = POLLIN}, {.fd = ends->control, .events = POLLIN}};
        if (poll(wait, 2, -1) < 0)
            continue;
        if (wait[1].revents) {
            errno = ECANCELED;
            return -1;
        }
        ssize_t n = read(ends->in, to, room);
        if (n >= 0 || (errno != EINTR && errno != EAGAIN))
            return n;
    }
}

static int is_link(int dir, const char *name)
{
    struct stat st;
    return !fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) && S_ISLNK(st.st_mode);
}

static int remember(struct extraction *x, const char *path, u32 mode)
{
    if (x->made_count == x->made_room) {
        u32 room = x->made_room ? 2 * x->made_room : 64;
        struct made *more = realloc(x->made, room * sizeof *more);
        if (!more)
            return ENOMEM;
        x->made = more;
        x->made_room = room;
    }
    struct made made = {.path = strdup(path), .depth = 1, .mode = mode, .index = x->made_count, .uid = (uid_t)-1, .gid = (gid_t)-1};
    if (!made.path)
        return ENOMEM;
    for (const char *at = path; *at; at++)
        made.depth += *at == '/';
    made.time.tv_nsec = UTIME_NOW;
    x->made[x->made_count++] = made;
    return 0;
}

static struct made *find_made(const struct extraction *x, const char *path)
{
    for (u32 i = x->made_count; i-- > 0;)
        if (!strcmp(x->made[i].path, path))
            return &x->made[i];
    return NULL;
}

/* One directory below another; made where it is missing and `path`, what it is called in the tree, is given. */
static int step(struct extraction *x, int dir, const char *name, const char *path, int *inner)
{
    for (int made = 0;; made = 1) {
        *inner = openat(dir, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (*inner >= 0)
            return 0;
        if (errno != ENOENT || !path || made)
            return errno == ENOTDIR && is_link(dir, name) ? ELOOP : errno;
        if (mkdirat(dir, name, 0700))
            return errno;
        int err = remember(x, path, 0755);
        if (err)
            return err;
    }
}

/* The directory of that path, "" being the root, step by step; no step is a link. The caller closes it. */
static int walk(struct extraction *x, const char *path, int make, int *dir)
{
    char name[TAR_PATH], whole[TAR_PATH] = "";
    int err = 0;
    *dir = dup(x->root);
    for (const char *at = path; *at && *dir >= 0 && !err;) {
        size_t length = strcspn(at, "/");
        int inner = -1;
        memcpy(name, at, length);
        name[length] = 0;
        memcpy(whole, path, (size_t)(at - path) + length);
        whole[at - path + (ptrdiff_t)length] = 0;
        at += length + (at[length] == '/');
        err = step(x, *dir, name, make ? whole : NULL, &inner);
        close(*dir);
        *dir = inner;
    }
    return *dir < 0 && !err ? errno : err;
}

/* Opens the directory of a path, makes what is missing of it, and finds its last name. */
static int enter_parent(struct extraction *x, const char *path, const char **base)
{
    char parent[TAR_PATH];
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (size_t)(slash - path) : 0;
    memcpy(parent, path, length);
    parent[length] = 0;
    *base = slash ? slash + 1 : path;
    if (x->parent >= 0 && !strcmp(parent, x->parent_path))
        return 0;
    if (x->parent >= 0)
        close(x->parent);
    int err = walk(x, parent, 1, &x->parent);
    if (err)
        x->parent = -1;
    strcpy(x->parent_path, parent);
    return err;
}

static void owner_wanted(const struct extraction *x, uid_t *uid, gid_t *gid)
{
    const struct run *run = x->op->run;
    *uid = run->owner ? x->owner.uid : run->options & OPT_OWNERS ? x->entry.uid : (uid_t)-1;
    *gid = run->owner ? x->owner.gid : run->options & OPT_OWNERS ? x->entry.gid : (gid_t)-1;
}

static int put_directory(struct extraction *x, const char *base)
{
    struct made *made;
    if (!mkdirat(x->parent, base, 0700)) {
        int err = remember(x, x->entry.path, 0);
        if (err)
            return err;
        made = &x->made[x->made_count - 1];
    } else {
        int err = errno, inner = -1;
        if (err != EEXIST || (err = step(x, x->parent, base, NULL, &inner)))
            return err;
        close(inner);
        made = find_made(x, x->entry.path);
    }
    if (!made) /* it was there before: it stays what it was */
        return 0;
    made->mode = x->entry.mode;
    made->time = (struct timespec){.tv_sec = x->entry.seconds, .tv_nsec = x->entry.nanoseconds};
    owner_wanted(x, &made->uid, &made->gid);
    return 0;
}

static int put_content(struct extraction *x, int fd)
{
    const u8 *data;
    ssize_t n;
    while ((n = tar_content(&x->reader, &data)) > 0) {
        int err = write_all(fd, data, (size_t)n);
        if (err)
            return err;
        x->bytes += (u64)n;
    }
    return n < 0 ? errno : 0;
}

static int put_file(struct extraction *x, const char *name)
{
    int fd = openat(x->parent, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return errno;
    const struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, {.tv_sec = x->entry.seconds, .tv_nsec = x->entry.nanoseconds}};
    uid_t uid;
    gid_t gid;
    owner_wanted(x, &uid, &gid);
    int err = put_content(x, fd);
    if (!err && (uid != (uid_t)-1 || gid != (gid_t)-1) && fchown(fd, uid, gid))
        err = errno;
    if (!err && fchmod(fd, x->entry.mode))
        err = errno;
    if (!err && futimens(fd, times))
        err = errno;
    if (close(fd) && !err)
        err = errno;
    return err;
}

/* Through the link's own name: what it may lead to is nobody's concern here. */
static int put_special(struct extraction *x, const char *name)
{
    const struct tar_entry *e = &x->entry;
    const struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, {.tv_sec = e->seconds, .tv_nsec = e->nanoseconds}};
    uid_t uid;
    gid_t gid;
    owner_wanted(x, &uid, &gid);
    if (e->type == TAR_SYMLINK ? symlinkat(e->target, x->parent, name) : mkfifoat(x->parent, name, (mode_t)e->mode))
        return errno;
    if ((uid != (uid_t)-1 || gid != (gid_t)-1) && fchownat(x->parent, name, uid, gid, AT_SYMLINK_NOFOLLOW))
        return errno;
    return utimensat(x->parent, name, times, AT_SYMLINK_NOFOLLOW) ? errno : 0;
}

static int put_hard_link(struct extraction *x, const char *name)
{
    char parent[TAR_PATH];
    char *slash = strrchr(strcpy(parent, x->entry.target), '/');
    const char *base = slash ? x->entry.target + (slash - parent) + 1 : x->entry.target;
    *(slash ? slash : parent) = 0;
    int dir, err = walk(x, parent, 0, &dir);
    if (err)
        return err;
    if (linkat(dir, base, x->parent, name, 0))
        err = errno;
    close(dir);
    return err;
}

/* It grows under a name of ours and takes its own in one step: what was there is whole until then, and never written into. */
static int put_other(struct extraction *x, const char *base)
{
    char name[NAME_SIZE];
    int err;
    random_name(name);
    switch (x->entry.type) {
    case TAR_FILE: err = put_file(x, name); break;
    case TAR_HARD_LINK: err = put_hard_link(x, name); break;
    case TAR_SYMLINK:
    case TAR_FIFO: err = put_special(x, name); break;
    default: return EPERM; /* a device */
    }
    if (!err && renameat(x->parent, name, x->parent, base))
        err = errno;
    if (err || x->entry.type == TAR_HARD_LINK) /* two names of one file: the kernel renames nothing, and says that all is well */
        unlinkat(x->parent, name, 0);
    return err;
}

static int put_entry(struct extraction *x)
{
    const char *base;
    if (!x->entry.path[0]) /* the root: it is the caller's, and stays what it is */
        return 0;
    int err = enter_parent(x, x->entry.path, &base);
    if (err)
        return err;
    x->entries++;
    return x->entry.type == TAR_DIRECTORY ? put_directory(x, base) : put_other(x, base);
}

static int deepest_first(const void *a, const void *b)
{
    const struct made *one = a, *other = b;
    if (one->depth != other->depth)
        return one->depth < other->depth ? 1 : -1;
    return one->index < other->index ? -1 : 1;
}

static int finish_directory(struct extraction *x, const struct made *made)
{
    char parent[TAR_PATH];
    char *slash = strrchr(strcpy(parent, made->path), '/');
    const char *base = slash ? made->path + (slash - parent) + 1 : made->path;
    *(slash ? slash : parent) = 0;
    int dir, err = walk(x, parent, 0, &dir);
    if (err)
        return err;
    int fd = openat(dir, base, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    const struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, made->time};
    if (fd < 0 || ((made->uid != (uid_t)-1 || made->gid != (gid_t)-1) && fchown(fd, made->uid, made->gid)) ||
        fchmod(fd, made->mode) || futimens(fd, times))
        err = errno;
    if (fd >= 0)
        close(fd);
    close(dir);
    return err;
}

/* Also after a failure: what is left has the modes that it should have. */
static int finish(struct extraction *x, int err)
{
    if (x->made_count)
        qsort(x->made, x->made_count, sizeof *x->made, deepest_first);
    for (u32 i = 0; i < x->made_count; i++) {
        int failure = finish_directory(x, &x->made[i]);
        if (failure && !err) {
            err = failure;
            strcpy(x->entry.path, x->made[i].path);
        }
    }
    return err;
}

/* What follows an archive's end fills its last record, or is not there. */
static int drain(struct extraction *x)
{
    ssize_t n;
    while ((n = receive(x->reader.from, x->reader.data, sizeof x->reader.data)) > 0)
        ;
    return n < 0 || cancelled(x->op) ? ECANCELED : 0;
}

static int open_root(struct operation *op, int *root)
{
    const struct run *run = op->run;
    int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | (run->options & OPT_NOFOLLOW ? O_NOFOLLOW : 0);
    if (run->options & OPT_PARENTS) {
        char *path = run->path;
        for (size_t length = strlen(path); length > 1 && path[length - 1] == '/';)
            path[--length] = 0;
        int err = make_parents(path);
        if (err)
            return err;
        if (!mkdir(path, 0755)) {
            struct user owner;
            *root = open(path, flags | O_NOFOLLOW);
            err = *root < 0 ? errno : run->owner ? owner_of(op, &owner) : 0;
            if (!err && run->owner && fchown(*root, owner.uid, owner.gid))
                err = errno;
            return !err && fchmod(*root, run->has_mode ? run->mode & 07777 : 0755) ? errno : err;
        }
        if (errno != EEXIST)
            return errno;
    }
    *root = open(run->path, flags);
    return *root < 0 ? errno : 0;
}

int file_write_tree(struct operation *op)
{
    struct extraction *x = calloc(1, sizeof *x);
    if (!x)
        return ENOMEM;
    x->op = op;
    x->root = x->parent = -1;
    x->reader.read = receive;
    x->reader.from = (void *)op->ends;
    int more = 0, err = op->run->owner ? owner_of(op, &x->owner) : 0;
    if (err || (err = open_root(op, &x->root)))
        return err;
    umask(0);
    while (!err && (more = tar_next(&x->reader, &x->entry)) > 0)
        err = put_entry(x);
    if (!err && more < 0)
        err = errno;
    if (!err)
        err = drain(x);
    err = finish(x, err);
    if (err)
        (void)write_all(op->ends->err, x->entry.path, strlen(x->entry.path));
    result_tree(op, x->entries, x->bytes, 0);
    return err;
}
