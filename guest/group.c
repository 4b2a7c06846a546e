#include "group.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

size_t parent_of(const char *path)
{
    const char *last = strrchr(path, '/');
    return last ? (size_t)(last - path) : 0;
}

int group_open(const char *procs)
{
    char tasks[4096 + 128];
    int size = (int)parent_of(procs);
    if (size < 4096) {
        snprintf(tasks, sizeof tasks, "%.*s/tasks", size, procs);
        int fd = open(tasks, O_WRONLY | O_CLOEXEC);
        if (fd >= 0 || errno != ENOENT)
            return fd;
    }
    return open(procs, O_WRONLY | O_CLOEXEC);
}
