#include "files.h"
#include "fingerprint.h"
#include "tree.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

void put_stat(u8 *at, const struct stat *st)
{
    put_u32(at, st->st_mode);
    put_u32(at + 4, st->st_uid);
    put_u32(at + 8, st->st_gid);
    put_u32(at + 12, (u32)st->st_nlink);
    put_u64(at + 16, (u64)st->st_size);
    put_u64(at + 24, st->st_ino);
    put_u64(at + 32, (u64)st->st_mtim.tv_sec * 1000000000 + (u64)st->st_mtim.tv_nsec);
    put_u64(at + 40, 0);
}

int result_stat(struct operation *op, const struct stat *st)
{
    put_stat(op->result, st);
    op->result_length = STAT_SIZE;
    return 0;
}

void result_count(struct operation *op, u64 count)
{
    put_u64(op->result, count);
    op->result_length = 8;
}

void result_tree(struct operation *op, u64 entries, u64 bytes, u64 left_out)
{
    put_u64(op->result, entries);
    put_u64(op->result + 8, bytes);
    put_u64(op->result + 16, left_out);
    op->result_length = 24;
}

int write_all(int fd, const void *data, size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t n = write(fd, (const u8 *)data + done, length - done);
        if (n < 0 && errno != EINTR)
            return errno;
        done += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

/* Its reader may take its time, or have been told to take no more: then the guest says so on the control socket. */
int write_out(const struct operation *op, const void *data, size_t length)
{
    int out = op->ends->out;
    if (fcntl(out, F_SETFL, O_NONBLOCK)) /* the end is ours alone */
        return errno;
    for (size_t done = 0; done < length;) {
        ssize_t n = write(out, (const u8 *)data + done, length - done);
        struct pollfd wait[2] = {{.fd = out, .events = POLLOUT}, {.fd = op->ends->control, .events = POLLIN}};
        if (n < 0 && errno == EAGAIN && poll(wait, 2, -1) > 0 && wait[1].revents)
            return ECANCELED;
        if (n < 0 && errno != EINTR && errno != EAGAIN)
            return errno;
        done += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

int make_parents(char *path)
{
    for (char *at = path + 1; *at; at++) {
        if (*at != '/' || at[-1] == '/' || !at[1])
            continue;
        *at = 0;
        int failed = mkdir(path, 0755), err = errno;
        struct stat st;
        if (failed && !stat(path, &st))
            err = S_ISDIR(st.st_mode) ? 0 : ENOTDIR;
        *at = '/';
        if (failed && err)
            return err;
    }
    return 0;
}

int split_path(char *path, char **base, int *dir)
{
    size_t length = strlen(path);
    if (path[length - 1] == '/')
        return EISDIR;
    char *slash = strrchr(path, '/');
    *base = slash ? slash + 1 : path;
    if (strcmp(*base, ".") == 0 || strcmp(*base, "..") == 0)
        return EISDIR;
    char saved = **base;
    **base = 0;
    *dir = open(slash ? path : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    int err = errno;
    **base = saved;
    return *dir < 0 ? err : 0;
}

void random_name(char *name)
{
    static const char digits[] = "0123456789abcdef";
    u8 raw[8];
    if (getrandom(raw, sizeof raw, 0) != sizeof raw)
        put_u64(raw, now_us() ^ (u64)getpid() << 40);
    strcpy(name, ".proofbox-");
    for (size_t i = 0; i < 16; i++)
        name[10 + i] = digits[raw[i / 2] >> (i % 2 * 4) & 15];
    name[26] = 0;
}

int owner_of(const struct operation *op, struct user *owner) { return user_find(op->run->owner, owner); }

int cancelled(const struct operation *op)
{
    struct pollfd control = {.fd = op->ends->control, .events = POLLIN};
    return poll(&control, 1, 0) > 0;
}

int file_read(struct operation *op)
{
    const struct run *run = op->run;
    int fd = open(run->path, O_RDONLY | O_NOCTTY | O_CLOEXEC | (run->options & OPT_NOFOLLOW ? O_NOFOLLOW : 0));
    struct stat st;
    if (fd < 0 || fstat(fd, &st))
        return errno;
    if (S_ISDIR(st.st_mode))
        return EISDIR;
    if (!S_ISREG(st.st_mode) && !S_ISCHR(st.st_mode) && !S_ISFIFO(st.st_mode))
        return EINVAL;
    if (run->offset > (u64)INT64_MAX)
        return EINVAL;
    if (run->offset && lseek(fd, (off_t)run->offset, SEEK_SET) < 0)
        return errno;
    for (u64 left = run->limit; left;) {
        ssize_t n = read(fd, op->data, left < COPY_SIZE ? (size_t)left : COPY_SIZE);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno;
        if (n == 0)
            break;
        int err = write_out(op, op->data, (size_t)n);
        if (err)
            return err;
        left -= (u64)n;
    }
    return result_stat(op, &st);
}

static int file_stat(struct operation *op)
{
    struct stat st;
    int nofollow = op->run->options & OPT_NOFOLLOW ? AT_SYMLINK_NOFOLLOW : 0;
    return fstatat(AT_FDCWD, op->run->path, &st, nofollow) ? errno : result_stat(op, &st);
}

static int stat_of(struct operation *op, const char *path)
{
    struct stat st;
    return lstat(path, &st) ? errno : result_stat(op, &st);
}

static int file_mkdir(struct operation *op)
{
    const struct run *run = op->run;
    char *path = run->path;
    for (size_t length = strlen(path); length > 1 && path[length - 1] == '/';)
        path[--length] = 0;
    int err = run->options & OPT_PARENTS ? make_parents(path) : 0;
    if (err)
        return err;
    struct stat st;
    if (mkdir(path, 0755)) {
        err = errno;
        if (!(run->options & OPT_PARENTS) || stat(path, &st) || !S_ISDIR(st.st_mode))
            return err;
        return result_stat(op, &st);
    }
    /* Set through a descriptor: in a directory that others may write, the name could be another's by now. */
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct user owner;
    err = fd < 0 ? errno : run->owner ? owner_of(op, &owner) : 0;
    if (!err && run->owner && fchown(fd, owner.uid, owner.gid))
        err = errno;
    if (!err && run->has_mode && fchmod(fd, run->mode & 07777))
        err = errno;
    if (!err && fstat(fd, &st))
        err = errno;
    if (err)
        rmdir(path);
    return err ? err : result_stat(op, &st);
}

static int file_rename(struct operation *op)
{
    const struct run *run = op->run;
    int err = run->options & OPT_PARENTS ? make_parents(run->path2) : 0;
    if (err)
        return err;
    long failed = run->options & OPT_EXCLUSIVE
                      ? syscall(SYS_renameat2, AT_FDCWD, run->path, AT_FDCWD, run->path2, 1 /* RENAME_NOREPLACE */)
                      : rename(run->path, run->path2);
    return failed ? errno : stat_of(op, run->path2);
}

static int file_readlink(struct operation *op)
{
    char target[PATH_MAX];
    ssize_t n = readlink(op->run->path, target, sizeof target);
    if (n < 0)
        return errno;
    int err = write_all(op->ends->out, target, (size_t)n);
    return err ? err : stat_of(op, op->run->path);
}

static int file_symlink(struct operation *op)
{
    int err = op->run->options & OPT_PARENTS ? make_parents(op->run->path) : 0;
    if (err)
        return err;
    return symlink(op->run->path2, op->run->path) ? errno : stat_of(op, op->run->path);
}

static int file_change(struct operation *op)
{
    const struct run *run = op->run;
    int nofollow = run->options & OPT_NOFOLLOW ? AT_SYMLINK_NOFOLLOW : 0;
    struct user owner;
    int err = run->owner ? owner_of(op, &owner) : 0;
    if (err)
        return err;
    if (run->owner && fchownat(AT_FDCWD, run->path, owner.uid, owner.gid, nofollow))
        return errno;
    if (run->has_mode && fchmodat(AT_FDCWD, run->path, run->mode & 07777, nofollow))
        return errno;
    return file_stat(op);
}

static void enter(const struct run *run, const struct user *user, int control)
{
    if (run->cwd) {
        if (chdir(run->cwd))
            send_failed(control, "cwd", errno);
    } else if ((user->home[0] != '/' || chdir(user->home)) && chdir("/")) {
        send_failed(control, "cwd", errno);
    }
}

_Noreturn void file_main(struct run *run, struct ends *ends)
{
    static int (*const operations[])(struct operation *) = {
        [OP_READ] = file_read,     [OP_WRITE] = file_write,       [OP_STAT] = file_stat,       [OP_LIST] = file_list,
        [OP_MKDIR] = file_mkdir,   [OP_REMOVE] = file_remove,     [OP_RENAME] = file_rename,   [OP_READLINK] = file_readlink,
        [OP_SYMLINK] = file_symlink, [OP_CHANGE] = file_change,     [OP_READ_TREE] = file_read_tree,
        [OP_WRITE_TREE] = file_write_tree, [OP_FINGERPRINT] = file_fingerprint,
    };
    struct operation op = {.run = run, .ends = ends, .data = malloc(COPY_SIZE)};
    struct user user;
    u64 began = now_us();
    keep_only(ends);
    int err = user_find(run->user, &user);
    if (!err && run->user)
        err = user_become(&user);
    if (err)
        send_failed(ends->control, "user", err);
    if (!op.data)
        send_failed(ends->control, "memory", ENOMEM);
    enter(run, &user, ends->control);
    struct report r = {.type = REPORT_STARTED, .pid = getpid()};
    send_report(ends->control, &r);
    err = operations[run->operation](&op);
    r = (struct report){.type = REPORT_RESULT, .err = err, .elapsed_us = now_us() - began};
    if (!err) {
        memcpy(r.result, op.result, op.result_length);
        r.result_length = op.result_length;
    }
    send_report(ends->control, &r);
    _exit(0);
}
