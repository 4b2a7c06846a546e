/* Copies a writable layer. What it holds was made by a hostile program: nothing is reached by a path, no link is followed,
 * nothing is opened but directories and regular files, and so nothing can make us wait. */
#include "layers.h"
#include "layerwalk.h"

#include <errno.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

/* Whoever digests a copy reads what was never written too: without end, if a hostile program says how long a file is. */
#define HOLES_MOST ((off_t)16 << 30)
enum { DEPTH_MOST = 256, VALUE_MOST = 65536, COMPARED_MOST = 1 << 17, NOBODY = 65534 };

struct name { /* the first name of a file that has several */
    struct name *next;
    dev_t device;
    ino_t inode;
    char path[];
};

static struct {
    uint32_t base;
    int target;
    bool compare; /* what was copied with its source */
    bool keep;
    off_t holes; /* bytes of nothing */
    uid_t user;   /* whom what we make belongs to */
    gid_t group;
    unsigned long sockets, attributes; /* left out */
    struct name **names;
    size_t name_slots, name_count;
} job;

static char *value, *list;   /* VALUE_MOST bytes each */
static char *compared[2]; /* COMPARED_MOST bytes each */

static uid_t inner(uid_t id) { return id < job.base ? NOBODY : id - job.base; }

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
        walk_fail("remember");
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
            walk_fail("link");
        return false;
    }
    *slot = malloc(sizeof **slot + walk.path_size + 1);
    if (!*slot)
        walk_fail("remember");
    **slot = (struct name){NULL, found->st_dev, found->st_ino};
    memcpy((*slot)->path, walk.path, walk.path_size + 1);
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
    walk_check(fsetxattr(directory, OPAQUE, "y", 1, 0), "set attribute of");
    if (fsetxattr(directory, "trusted.overlay.opaque", "y", 1, 0) < 0 && errno != EPERM && errno != ENOTSUP)
        walk_fail("set attribute of");
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
    ssize_t size = fgetxattr(from, name, value, VALUE_MOST);
    walk_check(size, "read attribute of");
    if (strcmp(kept, "security.capability") == 0)
        size = plain_capability(size);
    else if (begins(kept, "system.posix_acl_"))
        inner_list(size);
    if (fsetxattr(to, kept, value, (size_t)size, 0) == 0)
        return;
    if (errno != EOPNOTSUPP && errno != EPERM && errno != ENOSPC && errno != EINVAL)
        walk_fail("set attribute of");
    job.attributes++;
}

static void copy_attributes(int from, int to)
{
    ssize_t size = flistxattr(from, list, VALUE_MOST);
    if (size < 0 && errno == EOPNOTSUPP)
        return;
    walk_check(size, "list attributes of");
    for (const char *name = list; name < list + size; name += strlen(name) + 1)
        copy_attribute(from, to, name);
}

/* What is open, and has that mode now. Each call that is not made counts where there are thousands of files. */
static void copy_metadata(const struct stat *found, mode_t now, int from, int to)
{
    struct timespec times[2] = {found->st_atim, found->st_mtim};
    uid_t user = inner(found->st_uid);
    gid_t group = inner(found->st_gid);
    bool known = true;
    if (user != job.user || group != job.group) {
        walk_check(fchown(to, user, group), "own");
        known = false; /* it takes bits away */
    }
    if (!known || (found->st_mode & 07777) != now)
        walk_check(fchmod(to, found->st_mode & 07777), "set mode of");
    copy_attributes(from, to);
    walk_check(futimens(to, times), "set times of"); /* last: all else changes them */
}

/* What was made in a directory that is not ours alone may have taken its group, and an access list. */
static void forget_parent(int made, mode_t mode)
{
    static const char *const lists[] = {"system.posix_acl_access", "system.posix_acl_default"};
    for (int i = 0; i < 2; i++)
        if (fremovexattr(made, lists[i]) < 0 && errno != ENODATA && errno != EOPNOTSUPP)
            walk_fail("remove attribute of");
    walk_check(fchown(made, job.user, job.group), "own");
    walk_check(fchmod(made, mode), "set mode of");
}

static void read_part(int fd, char *part, size_t size, off_t at)
{
    for (size_t done = 0; done < size;) {
        ssize_t more = pread(fd, part + done, size - done, at + (off_t)done);
        if (more < 0 && errno == EINTR)
            continue;
        walk_check(more, "read");
        errno = EIO;
        if (more == 0)
            walk_fail("read");
        done += (size_t)more;
    }
}

static void compare_bytes(int from, int to, off_t at, off_t end)
{
    for (size_t part; at < end; at += (off_t)part) {
        part = end - at > COMPARED_MOST ? COMPARED_MOST : (size_t)(end - at);
        read_part(from, compared[0], part, at);
        read_part(to, compared[1], part, at);
        errno = EIO;
        if (memcmp(compared[0], compared[1], part) != 0)
            walk_fail("the copy is not what was copied at");
    }
}

static void copy_bytes(int from, int to, off_t at, off_t end)
{
    static bool no_ranges;
    off_t begin = at;
    if (at)
        walk_check(lseek(to, at, SEEK_SET), "seek in");
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
        walk_check(done, "copy");
        if (done == 0)
            break; /* shorter than it was: somebody changes it after all */
        at += done;
    }
    if (job.compare)
        compare_bytes(from, to, begin, end);
}

static void copy_content(const struct stat *found, int from, int to)
{
    off_t at = 0, end = 0;
    if (found->st_blocks * 512 >= found->st_size) { /* no holes to look for */
        copy_bytes(from, to, 0, found->st_size);
        return;
    }
    errno = EFBIG;
    if (job.keep && (found->st_size > HOLES_MOST || (job.holes += found->st_size - found->st_blocks * 512) > HOLES_MOST))
        walk_fail("more holes than a layer that is kept may have, 16 GiB, up to");
    for (; at < found->st_size; at = end) {
        at = lseek(from, at, SEEK_DATA);
        if (at < 0 && errno == ENXIO)
            break;
        walk_check(at, "seek in");
        walk_check(end = lseek(from, at, SEEK_HOLE), "seek in");
        copy_bytes(from, to, at, end);
    }
    if (end < found->st_size)
        walk_check(ftruncate(to, found->st_size), "set size of");
}

static void copy_file(const struct stat *found, int from_directory, int to_directory, const char *name, bool fresh)
{
    struct stat again;
    mode_t mode = fresh ? found->st_mode & 0777 : 0600;
    if (linked(found, to_directory, name))
        return;
    int from = openat(from_directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    walk_check(from, "open");
    walk_check(fstat(from, &again), "look at");
    errno = EINVAL;
    if (!S_ISREG(again.st_mode))
        walk_fail("open");
    int how = job.compare ? O_RDWR : O_WRONLY;
    int to = openat(to_directory, name, how | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    walk_check(to, "make");
    if (!fresh)
        forget_parent(to, mode);
    copy_content(found, from, to);
    copy_metadata(found, mode, from, to);
    close(from);
    close(to);
}

static void copy_special(const struct stat *found, int from, int to, const char *name)
{
    struct timespec times[2] = {found->st_atim, found->st_mtim};

    if (S_ISCHR(found->st_mode) && found->st_rdev == 0) { /* a whiteout: only that it is there counts */
        walk_check(mknodat(to, name, S_IFCHR, 0), "make");
        return;
    }
    if (S_ISLNK(found->st_mode)) {
        ssize_t size = readlinkat(from, name, value, VALUE_MOST - 1);
        walk_check(size, "read link");
        value[size] = '\0';
        walk_check(symlinkat(value, to, name), "make link");
    } else if (S_ISFIFO(found->st_mode)) {
        walk_check(mknodat(to, name, S_IFIFO | 0600, 0), "make");
    } else {
        job.sockets++;
        return;
    }
    walk_check(fchownat(to, name, inner(found->st_uid), inner(found->st_gid), AT_SYMLINK_NOFOLLOW), "own");
    if (S_ISFIFO(found->st_mode))
        walk_check(fchmodat(to, name, found->st_mode & 07777, 0), "set mode of");
    walk_check(utimensat(to, name, times, AT_SYMLINK_NOFOLLOW), "set times of");
}

/* ``fresh``: ``to`` was made here, is empty but for what we make, and hands nothing down to that. */
static void copy_entries(int from, int to, int depth, bool fresh);

/* A directory that is there already has the attributes of the layer above. */
static void copy_directory(const struct stat *found, int from_directory, int to_directory, const char *name, int depth,
                           bool fresh)
{
    struct stat above;
    bool made = mkdirat(to_directory, name, 0700) == 0;

    if (!made && errno != EEXIST)
        walk_fail("make");
    errno = ELOOP;
    if (depth == DEPTH_MOST)
        walk_fail("too many directories in each other at");
    int from = walk_open(from_directory, name), to = walk_open(to_directory, name);
    if (made && !fresh)
        forget_parent(to, 0700);
    if (made || !walk_is_opaque(to)) {
        walk_check(fstat(to, &above), "look at");
        copy_entries(from, to, depth + 1, made);
        if (made) {
            copy_metadata(found, 0700, from, to);
        } else {
            struct timespec times[2] = {above.st_atim, above.st_mtim};
            if (walk_is_opaque(from))
                make_opaque(to);
            walk_check(futimens(to, times), "set times of");
        }
    }
    close(from);
    close(to);
}

static void copy_entry(int from, int to, const char *name, int depth, bool fresh)
{
    struct stat found, above;
    walk_check(fstatat(from, name, &found, AT_SYMLINK_NOFOLLOW), "look at");
    bool there = !fresh && fstatat(to, name, &above, AT_SYMLINK_NOFOLLOW) == 0;
    if (!there && !fresh && errno != ENOENT)
        walk_fail("look at");
    if (there && !(S_ISDIR(found.st_mode) && S_ISDIR(above.st_mode)))
        return;
    if (S_ISDIR(found.st_mode))
        copy_directory(&found, from, to, name, depth, fresh);
    else if (S_ISREG(found.st_mode))
        copy_file(&found, from, to, name, fresh);
    else
        copy_special(&found, from, to, name);
}

static void copy_entries(int from, int to, int depth, bool fresh)
{
    struct dirent *entry;
    int own = fcntl(from, F_DUPFD_CLOEXEC, 0);
    walk_check(own, "open");
    DIR *directory = fdopendir(own);
    if (!directory)
        walk_fail("open");
    while ((errno = 0, entry = readdir(directory))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        size_t before = walk_enter(entry->d_name);
        copy_entry(from, to, entry->d_name, depth, fresh);
        walk_leave(before);
    }
    if (errno)
        walk_fail("list");
    closedir(directory);
}

int copylayer_main(int count, char **words)
{
    if (count != 5 && count != 6)
        return 2;
    walk_as_root(words[4]);
    job.compare = count == 6;
    job.keep = count == 6 && strcmp(words[5], "keep") == 0;
    job.user = geteuid();
    job.group = getegid();
    int from = atoi(words[1]);
    job.target = atoi(words[2]);
    job.base = (uint32_t)strtoul(words[3], NULL, 10);
    umask(0);
    value = malloc(2 * VALUE_MOST + 2 * COMPARED_MOST);
    if (!value)
        walk_fail("get memory for");
    list = value + VALUE_MOST;
    compared[0] = list + VALUE_MOST;
    compared[1] = compared[0] + COMPARED_MOST;
    more_slots();
    int top = openat(from, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    walk_check(top, "open");
    copy_entries(top, job.target, 0, false);
    printf("%lu %lu\n", job.sockets, job.attributes);
    return fflush(stdout) == 0 ? 0 : 1;
}
