#include "userns.h"

#include "control.h"

#include <errno.h>
#include <grp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool alone(void)
{
    char uids[64], gids[64];
    snprintf(uids, sizeof uids, "0 %u 1", (unsigned)geteuid());
    snprintf(gids, sizeof gids, "0 %u 1", (unsigned)getegid());
    return unshare(CLONE_NEWUSER) == 0 && control_write("/proc/self/setgroups", "deny") &&
           control_write("/proc/self/uid_map", uids) && control_write("/proc/self/gid_map", gids);
}

int userns_main(int argc, char **argv)
{
    char byte = 0;
    if (argc > 2) {
        if (strcmp(argv[1], "one") == 0 ? alone() : userns_enter(atoi(argv[1])) == 0)
            execv(argv[2], argv + 2);
        fprintf(stderr, "%s: %s\n", argv[2], strerror(errno));
        return 1;
    }
    if (unshare(CLONE_NEWUSER) < 0) {
        fprintf(stderr, "%s\n", strerror(errno));
        return 1;
    }
    if (write(1, &byte, 1) != 1)
        return 1;
    while (read(0, &byte, 1) < 0 && errno == EINTR)
        ;
    return 0;
}

int userns_enter(int fd)
{
    if (setns(fd, CLONE_NEWUSER) < 0)
        return -1;
    return close(fd);
}

bool userns_become_root(const char *ids)
{
    if (strcmp(ids, "all") == 0)
        return true;
    if (strcmp(ids, "one") == 0)
        return alone();
    return userns_enter(atoi(ids)) == 0 && setgroups(0, NULL) == 0;
}
