#include "enter.h"

#include "frame.h"
#include "group.h"
#include "launch_sys.h"
#include "userns.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { LEFT_MAX = 8 };

int enter_channel = -1;

_Noreturn void fail(const char *step, const char *what)
{
    send_fatal(enter_channel, step, what, errno);
    _exit(1);
}

void check(long result, const char *step, const char *what)
{
    if (result < 0)
        fail(step, what);
}

void die_with_parent(void)
{
    check(prctl(PR_SET_PDEATHSIG, SIGKILL), "set parent death signal", "");
    struct pollfd channel = {.fd = enter_channel, .events = 0};
    if (poll(&channel, 1, 0) > 0 && channel.revents & (POLLHUP | POLLERR))
        _exit(1); /* the client died before the signal was set */
}

void join_groups(const char *const *directories, int count)
{
    for (int i = 0; i < count; i++) {
        char path[4200];
        snprintf(path, sizeof path, "%s/cgroup.procs", directories[i]);
        int fd = group_open(path);
        check(fd, "open", path);
        check(write(fd, "0", 1), "join", path);
        close(fd);
    }
}

void become_root(const char *ids)
{
    if (!userns_become_root(ids))
        fail("become root of a user namespace with ids", ids);
}

static int exit_code(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

/* The children that init has now, at most `room`; how many. A kernel without the file (CONFIG_PROC_CHILDREN) names none: -1. */
static int find_children(pid_t *children, int room)
{
    int count = 0;
    FILE *file = fopen("/proc/self/task/1/children", "re");
    if (!file)
        return -1;
    while (count < room && fscanf(file, "%d", &children[count]) == 1)
        count++;
    fclose(file);
    return count;
}

/* Later ones come to us from those that have ended, and tell nothing. */
_Noreturn void reap_until(pid_t program, bool detaches)
{
    pid_t left[LEFT_MAX] = {program};
    int status, code = 0, count = 1;
    do {
        pid_t ended = waitpid(-1, &status, 0);
        if (ended < 0 && errno != EINTR)
            _exit(1); /* nobody is left */
        for (int i = 0; i < count; i++)
            if (left[i] == ended) {
                code = exit_code(status);
                left[i] = left[--count];
            }
        if (ended == program && !code && detaches)
            count = find_children(left, LEFT_MAX);
    } while (count && !code);
    _exit(code);
}

static volatile sig_atomic_t inner;

static void end_inner(int signal_number)
{
    (void)signal_number;
    if (inner > 0)
        kill((pid_t)inner, SIGKILL);
}

/* Of a flood of words the last ones are kept. */
static void read_complaint(int complaint, char *text, size_t size)
{
    size_t used = 0;
    ssize_t got;
    while ((got = read(complaint, text + used, size - 1 - used)) != 0) {
        if (got < 0 && errno != EINTR)
            break;
        used += got > 0 ? (size_t)got : 0;
        if (used == size - 1) {
            used /= 2;
            memmove(text, text + used, size - 1 - used);
            used = size - 1 - used;
        }
    }
    text[used] = 0;
}

int run_in_pid_namespace(enter_init *init, char *text, size_t size)
{
    int complaint[2], status;
    sigset_t block, before;

    check(pipe2(complaint, O_CLOEXEC), "make pipe", "");
    sigemptyset(&block);
    sigaddset(&block, SIGTERM);
    sigprocmask(SIG_BLOCK, &block, &before);
    check(unshare(CLONE_NEWPID), "make PID namespace", "");
    pid_t pid = fork();
    check(pid, "fork", "");
    if (pid == 0) {
        close(complaint[0]);
        init(complaint[1]);
    }
    close(complaint[1]);
    inner = pid;
    struct sigaction action = {.sa_handler = end_inner};
    sigaction(SIGTERM, &action, NULL);
    sigprocmask(SIG_SETMASK, &before, NULL);
    read_complaint(complaint[0], text, size);
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return 1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
