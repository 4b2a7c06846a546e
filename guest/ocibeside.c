/* Runs a program of the host beside a sandbox: where the OCI runtime of that runs, which it is to talk to. */
#include "ocienter.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct {
    const char *name;
    int kind;
} spaces[] = {{"user", CLONE_NEWUSER}, {"mnt", CLONE_NEWNS}, {"pid_for_children", CLONE_NEWPID}};

enum { SPACES = sizeof spaces / sizeof *spaces };

static void need(long result, const char *step, const char *what)
{
    if (result >= 0)
        return;
    fprintf(stderr, "%s %s: %s\n", step, what, strerror(errno));
    exit(1);
}

/* As root it is our own user namespace, which cannot be entered again. */
static bool is_ours(int space)
{
    struct stat here, there;
    need(stat("/proc/self/ns/user", &here), "look at", "/proc/self/ns/user");
    need(fstat(space, &there), "look at", "user namespace");
    return here.st_dev == there.st_dev && here.st_ino == there.st_ino;
}

int ocibeside_main(int count, char **words)
{
    int found[SPACES], status;
    char path[64];
    if (count < 4 || strcmp(words[2], "--") != 0)
        return 2;
    for (int i = 0; i < SPACES; i++) { /* all of them first: what was entered may hide the others */
        snprintf(path, sizeof path, "ns/%s", spaces[i].name);
        need(found[i] = openat(atoi(words[1]), path, O_RDONLY | O_CLOEXEC), "open", path);
    }
    for (int i = is_ours(found[0]) ? 1 : 0; i < SPACES; i++)
        need(setns(found[i], spaces[i].kind), "enter namespace", spaces[i].name);
    close(atoi(words[1]));
    need(prctl(PR_SET_PDEATHSIG, SIGKILL), "set parent death signal", "");
    pid_t program = fork();
    need(program, "fork", "");
    if (program == 0) {
        need(prctl(PR_SET_PDEATHSIG, SIGKILL), "set parent death signal", "");
        execv(words[3], words + 3);
        need(-1, "run", words[3]);
    }
    while (waitpid(program, &status, 0) < 0)
        if (errno != EINTR)
            return 1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
