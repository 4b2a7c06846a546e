#include "kernel.h"

#include "control.h"
#include "tree.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATIENCE_MS = 10000, NO_SUBREAPER = 1, NO_SIGNALFD, NOT_FOUND, NOT_OURS, NO_MEMORY };

/* A command that leaves a child of its own behind, in another session. */
static _Noreturn void leave_orphan(void)
{
    setsid();
    pid_t orphan = fork();
    if (orphan == 0)
        for (;;)
            pause();
    _exit(orphan < 0);
}

/* As a supervisor does it (supervisor.c). The exit code says what failed. */
static _Noreturn void supervise_orphan(void)
{
    struct pids found = {0};
    sigset_t child;
    int status;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
        _exit(NO_SUBREAPER);
    struct pollfd signals = {.fd = signalfd(-1, &child, SFD_CLOEXEC), .events = POLLIN};
    pid_t command = fork();
    if (command == 0)
        leave_orphan();
    if (command < 0)
        _exit(NO_MEMORY);
    if (signals.fd < 0 || poll(&signals, 1, PATIENCE_MS) != 1)
        _exit(NO_SIGNALFD);
    if (waitpid(command, &status, 0) != command || status)
        _exit(NO_MEMORY);
    if (tree_find(&found, NULL) || found.count != 1)
        _exit(NOT_FOUND);
    kill(found.list[0], SIGKILL);
    _exit(waitpid(-1, &status, 0) == found.list[0] ? 0 : NOT_OURS);
}

const char *kernel_lacks(void)
{
    static const char *const lacks[] = {
        [NO_SUBREAPER] = "it has no child subreaper (PR_SET_CHILD_SUBREAPER), so that what a command leaves behind is not found",
        [NO_SIGNALFD] = "a signalfd does not tell its process of the end of a child",
        [NOT_FOUND] = "/proc does not show what a command left behind",
        [NOT_OURS] = "what a command left behind does not come to the command's subreaper",
        [NO_MEMORY] = "a process could not be started and waited for",
    };
    int status = 0;
    tree_open_proc();
    pid_t pid = fork();
    if (pid == 0)
        supervise_orphan();
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return lacks[NO_MEMORY];
    close(tree_proc()); /* guest_main opens its own */
    if (!status)
        return NULL;
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    return code > 0 && code <= NO_MEMORY ? lacks[code] : "a process ended in an unknown way";
}

int kernel_limit_processes(const char *count)
{
    return control_write("/sys/fs/cgroup/pids/pids.max", count) ? 0 : -1;
}
