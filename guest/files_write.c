/* Writing a file: the new content grows beside the target and takes its place in one step. */
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAX_LINKS = 40 };

/* Copies pipe 0 into fd until its end. ECANCELED when the guest wants us to stop, EIO when the size is not the promised one. */
static int receive(struct operation *op, int fd)
{
    const struct run *run = op->run;
    u64 received = 0;
    for (;;) {
        struct pollfd wait[2] = {{.fd = op->ends->in, .events = POLLIN}, {.fd = op->ends->control, .events = POLLIN}};
        if (poll(wait, 2, -1) < 0)
            continue;
        if (wait[1].revents)
            return ECANCELED;
        ssize_t n = read(op->ends->in, op->data, COPY_SIZE);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n < 0)
            return errno;
        if (n == 0)
            break;
        received += (u64)n;
        int err = write_all(fd, op->data, (size_t)n);
        if (err)
            return err;
    }
    if (cancelled(op))
        return ECANCELED;
    return run->has_size && received != run->size ? EIO : 0;
}

/* Appends, or writes into what is no regular file (a device, a FIFO): in place. */
static int write_in_place(struct operation *op, const char *path)
{
    const struct run *run = op->run;
    struct user owner;
    struct stat st;
    int flags = O_WRONLY | O_NOCTTY | O_CLOEXEC | O_APPEND | (run->options & OPT_NOFOLLOW ? O_NOFOLLOW : 0);
    int err = run->owner ? owner_of(op, &owner) : 0;
    if (err)
        return err;
    int fd = open(path, flags | O_CREAT | O_EXCL, 0644), made = fd >= 0;
    if (fd < 0 && errno == EEXIST && !(run->options & OPT_EXCLUSIVE))
        fd = open(path, flags | O_CREAT, 0644); /* the link of a dangling symbolic link is made as well */
    if (fd < 0)
        return errno;
    if (run->owner && fchown(fd, owner.uid, owner.gid))
        err = errno;
    if (!err && run->has_mode && fchmod(fd, run->mode & 07777))
        err = errno;
    if (!err)
        err = receive(op, fd);
    if (!err && fstat(fd, &st))
        err = errno;
    if (err && made)
        unlink(path);
    close(fd); /* before the answer */
    return err ? err : result_stat(op, &st);
}

/* Replaces `path` by what its symbolic links lead to in the end; that need not exist. */
static int follow(char *path, int options, struct stat *st, int *exists)
{
    for (int links = 0;; links++) {
        char target[PATH_MAX];
        *exists = !lstat(path, st);
        if (!*exists)
            return errno == ENOENT ? 0 : errno;
        if (!S_ISLNK(st->st_mode))
            return 0;
        if (options & OPT_NOFOLLOW || links == MAX_LINKS)
            return ELOOP;
        ssize_t n = readlink(path, target, sizeof target - 1);
        if (n <= 0)
            return n ? errno : ENOENT;
        target[n] = 0;
        char *slash = strrchr(path, '/');
        size_t prefix = target[0] == '/' || !slash ? 0 : (size_t)(slash + 1 - path);
        if (prefix + (size_t)n + 1 > PATH_MAX)
            return ENAMETOOLONG;
        memcpy(path + prefix, target, (size_t)n + 1);
    }
}

/* Owner and mode: those asked for, else those of the file that is replaced, else ours and 0644. */
static int dress(struct operation *op, int fd, const struct stat *old)
{
    const struct run *run = op->run;
    struct user owner;
    struct stat now;
    if (fstat(fd, &now))
        return errno;
    int err = run->owner ? owner_of(op, &owner) : 0;
    if (err)
        return err;
    uid_t uid = run->owner ? owner.uid : old ? old->st_uid : now.st_uid;
    gid_t gid = run->owner ? owner.gid : old ? old->st_gid : now.st_gid;
    if ((uid != now.st_uid || gid != now.st_gid) && fchown(fd, uid, gid))
        return errno;
    mode_t mode = run->has_mode ? run->mode & 07777 : old ? old->st_mode & 07777 : 0644;
    return fchmod(fd, mode) ? errno : 0;
}

static int put_in_place(int dir, const char *from, const char *to, int exclusive)
{
    if (!exclusive)
        return renameat(dir, from, dir, to) ? errno : 0;
    if (!syscall(SYS_renameat2, dir, from, dir, to, 1 /* RENAME_NOREPLACE */))
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return errno;
    if (linkat(dir, from, dir, to, 0)) /* a file system without it: a link never replaces either */
        return errno;
    return unlinkat(dir, from, 0) ? errno : 0;
}

static int write_beside(struct operation *op, char *path, const struct stat *old)
{
    char *base, name[NAME_SIZE];
    int dir, err = split_path(path, &base, &dir);
    if (err)
        return err;
    /* Taking a file's place needs only the directory's permission: ask for the file's own too, as writing into it would. */
    if (old && faccessat(dir, base, W_OK, AT_EACCESS))
        return errno;
    random_name(name);
    int fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return errno;
    struct stat st;
    err = receive(op, fd);
    if (!err)
        err = dress(op, fd, old);
    if (!err)
        err = put_in_place(dir, name, base, op->run->options & OPT_EXCLUSIVE);
    if (err)
        unlinkat(dir, name, 0);
    else if (fstat(fd, &st))
        err = errno;
    close(fd); /* before the answer: the room of a file that was given up is free for the next one */
    return err ? err : result_stat(op, &st);
}

int file_write(struct operation *op)
{
    static char path[PATH_MAX];
    const struct run *run = op->run;
    struct stat st;
    int exists;
    if (strlen(run->path) >= sizeof path)
        return ENAMETOOLONG;
    strcpy(path, run->path);
    int err = run->options & OPT_PARENTS ? make_parents(path) : 0;
    if (err)
        return err;
    if (run->options & OPT_APPEND)
        return write_in_place(op, path);
    if (run->options & OPT_EXCLUSIVE && !lstat(path, &st))
        return EEXIST;
    if ((err = follow(path, run->options, &st, &exists)))
        return err;
    if (exists && S_ISDIR(st.st_mode))
        return EISDIR;
    if (exists && !S_ISREG(st.st_mode))
        return write_in_place(op, path);
    return write_beside(op, path, exists ? &st : NULL);
}
