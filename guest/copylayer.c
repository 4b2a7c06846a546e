/* Copies a writable layer. What it holds was made by a hostile program: nothing is reached by a path, no link is followed,
 * nothing is opened but directories and regular files, and so nothing can make us wait. */
#include "layers.h"

#include <errno.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

/* Whoever walks the copy by its names, and removes it, has to reach all of it: with his own directories before them. */
enum { DEPTH_MOST = 256, PATH_MOST = 3500, VALUE_MOST = 65536, LOWERS_MOST = 180, NOBODY = 65534 };
#define OPAQUE "user.overlay.opaque"

struct name { /* the first name of a file that has several */
    struct name *next;
    dev_t device;
    ino_t inode;
    char path[];
};

static struct {
    uint32_t base;
    int target;
    unsigned long sockets, attributes; /* left out */
    char path[PATH_MOST + 1]; /* of the entry at hand */
    size_t path_size;
    struct name **names;
    size_t name_slots, name_count;
} job;

static char value[VALUE_MOST], list[VALUE_MOST];

static _Noreturn void fail(const char *step)
{
    fprintf(stderr, "%s /%s: %s", step, job.path, strerror(errno));
    exit(1);
}

static void check(long result, const char *step)
{
    if (result < 0)
        fail(step);
}

static uid_t inner(uid_t id) { return id < job.base ? NOBODY : id - job.base; }

static size_t enter(const char *name)
{
    size_t before = job.path_size, length = strlen(name);
    char *end = job.path + before;

    errno = ENAMETOOLONG;
    if (before + length + 1 > PATH_MOST)
        fail("a name in");
    if (before)
        *end++ = '/';
    memcpy(end, name, length + 1);
    job.path_size = (size_t)(end - job.path) + length;
    return before;
}

static void leave(size_t before)
{
    job.path_size = before;
    job.path[before] = '\0';
}

static struct name **slot_of(dev_t device, ino_t inode)
{
    struct name **slot = &job.names[(inode * 31 + device) % job.name_slots];
    while (*slot && ((*slot)->inode != inode || (*slot)->device != device))
        slot = &(*slot)->next;
    return slot;
}

static void more_slots(void)
{
    struct name **old = job.names;
    size_t count = job.name_slots;
    job.name_slots = count ? 4 * count : 1024;
    job.names = calloc(job.name_slots, sizeof *job.names);
    if (!job.names)
        fail("remember");
    for (size_t i = 0; i < count; i++)
        for (struct name *name = old[i], *next; name; name = next) {
            struct name **slot = slot_of(name->device, name->inode);
            next = name->next;
            name->next = NULL;
            *slot = name;
        }
    free(old);
}

/* True if it is a further name of a file that was copied, and has been made. */
static bool linked(const struct stat *found, int to, const char *name)
{
    if (found->st_nlink < 2)
        return false;
    if (job.name_count >= job.name_slots)
        more_slots();
    struct name **slot = slot_of(found->st_dev, found->st_ino);
    if (*slot) {
        if (linkat(job.target, (*slot)->path, to, name, 0) == 0)
            return true;
        if (errno != EMLINK)
            fail("link");
        return false;
    }
    *slot = malloc(sizeof **slot + job.path_size + 1);
    if (!*slot)
        fail("remember");
    **slot = (struct name){NULL, found->st_dev, found->st_ino};
    memcpy((*slot)->path, job.path, job.path_size + 1);
    job.name_count++;
    return false;
}

/* File capabilities name the first id of the user namespace that they are good in; in a layer they name none. */
static ssize_t plain_capability(ssize_t size)
{
    uint32_t magic;
    memcpy(&magic, value, sizeof magic);
    if (size == 24 && magic >> 24 == 3) {
        magic = (magic & 0xffffff) | 2u << 24;
        memcpy(value, &magic, sizeof magic);
        return 20;
    }
    return size;
}

/* Access lists: a version, then entries of tag, permissions and id. */
static void inner_list(ssize_t size)
{
    for (ssize_t at = 4; at + 8 <= size; at += 8) {
        uint16_t tag;
        uint32_t id;
        memcpy(&tag, value + at, sizeof tag);
        memcpy(&id, value + at + 4, sizeof id);
        if (tag == 2 || tag == 8) {
            id = inner(id);
            memcpy(value + at + 4, &id, sizeof id);
        }
    }
}

static bool begins(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }

/* The name that an attribute has in a layer, NULL if it has none there. */
static const char *kept_name(const char *name)
{
    if (strcmp(name, OPAQUE) == 0 || strcmp(name, "trusted.overlay.opaque") == 0)
        return OPAQUE;
    if (begins(name, "user.overlay."))
        return begins(name, "user.overlay.overlay.") ? name : NULL; /* the overlay's own; what was set inside */
    if (begins(name, "user.") || strcmp(name, "security.capability") == 0 || begins(name, "system.posix_acl_"))
        return name;
    return NULL;
}

/* With root's mark too where we may set it: older kernels need that, see ocienter.c. */
static void make_opaque(int directory)
{
    check(fsetxattr(directory, OPAQUE, "y", 1, 0), "set attribute of");
    if (fsetxattr(directory, "trusted.overlay.opaque", "y", 1, 0) < 0 && errno != EPERM && errno != ENOTSUP)
        fail("set attribute of");
}

static void copy_attribute(int from, int to, const char *name)
{
    const char *kept = kept_name(name);
    if (!kept)
        return;
    if (strcmp(kept, OPAQUE) == 0) {
        make_opaque(to);
        return;
    }
    ssize_t size = fgetxattr(from, name, value, sizeof value);
    check(size, "read attribute of");
    if (strcmp(kept, "security.capability") == 0)
        size = plain_capability(size);
    else if (begins(kept, "system.posix_acl_"))
        inner_list(size);
    if (fsetxattr(to, kept, value, (size_t)size, 0) == 0)
        return;
    if (errno != EOPNOTSUPP && errno != EPERM && errno != ENOSPC && errno != EINVAL)
        fail("set attribute of");
    job.attributes++;
}

static void copy_attributes(int from, int to)
{
    ssize_t size = flistxattr(from, list, sizeof list);
    if (size < 0 && errno == EOPNOTSUPP)
        return;
    check(size, "list attributes of");
    for (const char *name = list; name < list + size; name += strlen(name) + 1)
        copy_attribute(from, to, name);
}

/* What is open. Times last: all else changes them. */
static void copy_metadata(const struct stat *found, int from, int to)
{
    struct timespec times[2] = {found->st_atim, found->st_mtim};
    check(fchown(to, inner(found->st_uid), inner(found->st_gid)), "own");
    check(fchmod(to, found->st_mode & 07777), "set mode of");
    copy_attributes(from, to);
    check(futimens(to, times), "set times of");
}

static void copy_bytes(int from, int to, off_t at, off_t end)
{
    static bool no_ranges;
    check(lseek(to, at, SEEK_SET), "seek in");
    while (at < end) {
        size_t part = end - at > (1 << 26) ? 1 << 26 : (size_t)(end - at);
        off_t source = at;
        ssize_t done = -1;
        if (!no_ranges && (done = copy_file_range(from, &source, to, NULL, part, 0)) < 0)
            no_ranges = true; /* between two file systems, mostly */
        if (no_ranges)
            done = sendfile(to, from, &source, part);
        if (done < 0 && errno == EINTR)
            continue;
        check(done, "copy");
        if (done == 0)
            break; /* shorter than it was: somebody changes it after all */
        at += done;
    }
}

static void copy_content(const struct stat *found, int from, int to)
{
    for (off_t at = 0, end; at < found->st_size; at = end) {
        at = lseek(from, at, SEEK_DATA);
        if (at < 0 && errno == ENXIO)
            break;
        check(at, "seek in");
        check(end = lseek(from, at, SEEK_HOLE), "seek in");
        copy_bytes(from, to, at, end);
    }
    check(ftruncate(to, found->st_size), "set size of");
}

static void copy_file(const struct stat *found, int from_directory, int to_directory, const char *name)
{
    struct stat again;
    if (linked(found, to_directory, name))
        return;
    int from = openat(from_directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    check(from, "open");
    check(fstat(from, &again), "look at");
    errno = EINVAL;
    if (!S_ISREG(again.st_mode))
        fail("open");
    int to = openat(to_directory, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    check(to, "make");
    copy_content(found, from, to);
    copy_metadata(found, from, to);
    close(from);
    close(to);
}

static void copy_special(const struct stat *found, int from, int to, const char *name)
{
    struct timespec times[2] = {found->st_atim, found->st_mtim};

    if (S_ISCHR(found->st_mode) && found->st_rdev == 0) { /* a whiteout: only that it is there counts */
        check(mknodat(to, name, S_IFCHR, 0), "make");
        return;
    }
    if (S_ISLNK(found->st_mode)) {
        ssize_t size = readlinkat(from, name, value, sizeof value - 1);
        check(size, "read link");
        value[size] = '\0';
        check(symlinkat(value, to, name), "make link");
    } else if (S_ISFIFO(found->st_mode)) {
        check(mknodat(to, name, S_IFIFO | 0600, 0), "make");
    } else {
        job.sockets++;
        return;
    }
    check(fchownat(to, name, inner(found->st_uid), inner(found->st_gid), AT_SYMLINK_NOFOLLOW), "own");
    if (S_ISFIFO(found->st_mode))
        check(fchmodat(to, name, found->st_mode & 07777, 0), "set mode of");
    check(utimensat(to, name, times, AT_SYMLINK_NOFOLLOW), "set times of");
}

static int open_directory(int at, const char *name)
{
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    check(fd, "open");
    return fd;
}

static bool is_opaque(int directory)
{
    char mark[2];
    return fgetxattr(directory, OPAQUE, mark, sizeof mark) >= 0 ||
           fgetxattr(directory, "trusted.overlay.opaque", mark, sizeof mark) >= 0;
}

static void copy_entries(int from, int to, int depth);

/* A directory that is there already has the attributes of the layer above. */
static void copy_directory(const struct stat *found, int from_directory, int to_directory, const char *name, int depth)
{
    struct stat above;
    bool made = mkdirat(to_directory, name, 0700) == 0;

    if (!made && errno != EEXIST)
        fail("make");
    errno = ELOOP;
    if (depth == DEPTH_MOST)
        fail("too many directories in each other at");
    int from = open_directory(from_directory, name), to = open_directory(to_directory, name);
    if (made || !is_opaque(to)) {
        check(fstat(to, &above), "look at");
        copy_entries(from, to, depth + 1);
        if (made) {
            copy_metadata(found, from, to);
        } else {
            struct timespec times[2] = {above.st_atim, above.st_mtim};
            if (is_opaque(from))
                make_opaque(to);
            check(futimens(to, times), "set times of");
        }
    }
    close(from);
    close(to);
}

static void copy_entry(int from, int to, const char *name, int depth)
{
    struct stat found, above;
    check(fstatat(from, name, &found, AT_SYMLINK_NOFOLLOW), "look at");
    bool there = fstatat(to, name, &above, AT_SYMLINK_NOFOLLOW) == 0;
    if (!there && errno != ENOENT)
        fail("look at");
    if (there && !(S_ISDIR(found.st_mode) && S_ISDIR(above.st_mode)))
        return;
    if (S_ISDIR(found.st_mode))
        copy_directory(&found, from, to, name, depth);
    else if (S_ISREG(found.st_mode))
        copy_file(&found, from, to, name);
    else
        copy_special(&found, from, to, name);
}

static void copy_entries(int from, int to, int depth)
{
    struct dirent *entry;
    int own = fcntl(from, F_DUPFD_CLOEXEC, 0);
    check(own, "open");
    DIR *directory = fdopendir(own);
    if (!directory)
        fail("open");
    while ((errno = 0, entry = readdir(directory))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        size_t before = enter(entry->d_name);
        copy_entry(from, to, entry->d_name, depth);
        leave(before);
    }
    if (errno)
        fail("list");
    closedir(directory);
}

/* What lies below a directory of the copy: those directories that an overlay would merge with it. */
struct below {
    int fds[LOWERS_MOST];
    size_t count;
};

static void prune(int directory, const struct below *below);

static void prune_directory(int parent, const char *name, const struct below *below)
{
    struct below inner = {.count = 0};
    struct stat found;
    int directory = open_directory(parent, name);

    for (size_t i = 0; i < below->count && !is_opaque(directory); i++) {
        if (fstatat(below->fds[i], name, &found, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        if (!S_ISDIR(found.st_mode))
            break;
        inner.fds[inner.count++] = open_directory(below->fds[i], name);
        if (is_opaque(inner.fds[inner.count - 1]))
            break;
    }
    prune(directory, &inner);
    while (inner.count)
        close(inner.fds[--inner.count]);
    close(directory);
}

static void prune(int directory, const struct below *below)
{
    struct dirent *entry;
    struct stat before, found;
    int own = fcntl(directory, F_DUPFD_CLOEXEC, 0);

    check(own, "open");
    check(fstat(directory, &before), "look at");
    DIR *entries = fdopendir(own);
    if (!entries)
        fail("open");
    while ((errno = 0, entry = readdir(entries))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        size_t outside = enter(entry->d_name);
        check(fstatat(directory, entry->d_name, &found, AT_SYMLINK_NOFOLLOW), "look at");
        if (S_ISDIR(found.st_mode))
            prune_directory(directory, entry->d_name, below);
        else if (S_ISCHR(found.st_mode) && !below->count)
            check(unlinkat(directory, entry->d_name, 0), "remove");
        leave(outside);
    }
    if (errno)
        fail("list");
    closedir(entries);
    struct timespec times[2] = {before.st_atim, before.st_mtim};
    check(futimens(directory, times), "set times of");
}

static void become_root(const char *ids)
{
    struct rlimit files;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!layers_become_root(ids))
        fail("make a user namespace for");
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* becoming root has forgotten it */
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) { /* three for each directory that we are in, and what lies below it */
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
}

int prunelayer_main(int count, char **words)
{
    if (count < 3)
        return 2;
    become_root(words[2]);
    int top = atoi(words[1]);
    for (int i = 3; i < count;) {
        struct below below = {.count = 0};
        const char *number = words[i];
        for (; i + 1 < count && strcmp(words[i], number) == 0 && below.count < LOWERS_MOST; i += 2)
            check(below.fds[below.count++] = open(words[i + 1], O_RDONLY | O_DIRECTORY | O_CLOEXEC), words[i + 1]);
        int part = open_directory(top, number);
        prune(part, &below);
        close(part);
        while (below.count)
            close(below.fds[--below.count]);
    }
    return 0;
}

int copylayer_main(int count, char **words)
{
    if (count != 5)
        return 2;
    become_root(words[4]);
    int from = atoi(words[1]);
    job.target = atoi(words[2]);
    job.base = (uint32_t)strtoul(words[3], NULL, 10);
    umask(0);
    more_slots();
    int top = openat(from, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    check(top, "open");
    copy_entries(top, job.target, 0);
    printf("%lu %lu\n", job.sockets, job.attributes);
    return fflush(stdout) == 0 ? 0 : 1;
}
