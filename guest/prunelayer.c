#include "layers.h"
#include "layerwalk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOWERS_MOST = 180 };

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
    int directory = walk_open(parent, name);

    for (size_t i = 0; i < below->count && !walk_is_opaque(directory); i++) {
        if (fstatat(below->fds[i], name, &found, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        if (!S_ISDIR(found.st_mode))
            break;
        inner.fds[inner.count++] = walk_open(below->fds[i], name);
        if (walk_is_opaque(inner.fds[inner.count - 1]))
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

    walk_check(own, "open");
    walk_check(fstat(directory, &before), "look at");
    DIR *entries = fdopendir(own);
    if (!entries)
        walk_fail("open");
    while ((errno = 0, entry = readdir(entries))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        size_t outside = walk_enter(entry->d_name);
        walk_check(fstatat(directory, entry->d_name, &found, AT_SYMLINK_NOFOLLOW), "look at");
        if (S_ISDIR(found.st_mode))
            prune_directory(directory, entry->d_name, below);
        else if (S_ISCHR(found.st_mode) && !below->count)
            walk_check(unlinkat(directory, entry->d_name, 0), "remove");
        walk_leave(outside);
    }
    if (errno)
        walk_fail("list");
    closedir(entries);
    struct timespec times[2] = {before.st_atim, before.st_mtim};
    walk_check(futimens(directory, times), "set times of");
}

int prunelayer_main(int count, char **words)
{
    if (count < 3)
        return 2;
    walk_as_root(words[2]);
    int top = atoi(words[1]);
    for (int i = 3; i < count;) {
        struct below below = {.count = 0};
        const char *number = words[i];
        for (; i + 1 < count && strcmp(words[i], number) == 0 && below.count < LOWERS_MOST; i += 2)
            walk_check(below.fds[below.count++] = open(words[i + 1], O_RDONLY | O_DIRECTORY | O_CLOEXEC), words[i + 1]);
        int part = walk_open(top, number);
        prune(part, &below);
        close(part);
        while (below.count)
            close(below.fds[--below.count]);
    }
    return 0;
}
