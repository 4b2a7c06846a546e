#include "layerwalk.h"
#include "userns.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/xattr.h>

struct walk walk;

_Noreturn void walk_fail(const char *step)
{
    fprintf(stderr, "%s /%s: %s", step, walk.path, strerror(errno));
    exit(1);
}

void walk_check(long result, const char *step)
{
    if (result < 0)
        walk_fail(step);
}

size_t walk_enter(const char *name)
{
    size_t before = walk.path_size, length = strlen(name);
    char *end = walk.path + before;

    errno = ENAMETOOLONG;
    if (before + length + 1 > PATH_MOST)
        walk_fail("a name in");
    if (before)
        *end++ = '/';
    memcpy(end, name, length + 1);
    walk.path_size = (size_t)(end - walk.path) + length;
    return before;
}

void walk_leave(size_t before)
{
    walk.path_size = before;
    walk.path[before] = '\0';
}

int walk_open(int at, const char *name)
{
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    walk_check(fd, "open");
    return fd;
}

bool walk_is_opaque(int directory)
{
    char mark[2];
    return fgetxattr(directory, OPAQUE, mark, sizeof mark) >= 0 ||
           fgetxattr(directory, "trusted.overlay.opaque", mark, sizeof mark) >= 0;
}

void walk_as_root(const char *ids)
{
    struct rlimit files;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!userns_become_root(ids))
        walk_fail("make a user namespace for");
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* becoming root has forgotten it */
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) { /* three for each directory that we are in, and what lies below it */
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
}
