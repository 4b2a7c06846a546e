#include "withparent.h"

#include "tree.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { NO_PROGRAM = 127, BY_SIGNAL = 128 };

static const struct timespec pause_between = {.tv_nsec = 2000000}; /* for what was killed to be dead */

/* Reaps what has ended. 0 when nobody is left; `status` is that of `program`, if it is among them. */
static int reap(pid_t program, int *status)
{
    for (;;) {
        int ended;
        pid_t pid = waitpid(-1, &ended, WNOHANG | __WALL);
        if (pid <= 0)
            return pid == 0;
        if (pid == program)
            *status = WIFEXITED(ended) ? WEXITSTATUS(ended) : BY_SIGNAL + WTERMSIG(ended);
    }
}

/* What ends us must find us ending them: Ctrl-C goes to all who are in the foreground. */
static void set_awaited(sigset_t *awaited)
{
    static const int numbers[] = {SIGCHLD, SIGTERM, SIGINT, SIGQUIT, SIGHUP};
    sigemptyset(awaited);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaddset(awaited, numbers[i]);
}

static void end_all(pid_t program, int *status)
{
    while (reap(program, status)) {
        tree_kill(NULL);
        nanosleep(&pause_between, NULL);
    }
}

int withparent_main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    sigset_t awaited, before;
    set_awaited(&awaited);
    sigprocmask(SIG_BLOCK, &awaited, &before);
    if (prctl(PR_SET_PDEATHSIG, SIGTERM) < 0 || getppid() != (pid_t)atol(argv[1]) || prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0)
        return 1;
    if (geteuid() == 0 && !unshare(CLONE_NEWNS)) /* a root that may not cannot mount anything either */
        mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL);
    tree_open_proc();
    pid_t program = fork();
    if (program < 0)
        return 1;
    if (program == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* should somebody kill us */
        sigprocmask(SIG_SETMASK, &before, NULL);
        execv(argv[2], argv + 2);
        _exit(NO_PROGRAM);
    }
    int status = -1;
    for (int came = SIGCHLD; status < 0 && came == SIGCHLD;) {
        if (sigwait(&awaited, &came))
            return 1;
        reap(program, &status);
    }
    end_all(program, &status);
    return status;
}
