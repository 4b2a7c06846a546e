#include "userns.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int userns_main(int argc, char **argv)
{
    char byte = 0;
    if (argc > 2) {
        if (userns_enter(atoi(argv[1])) == 0)
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
