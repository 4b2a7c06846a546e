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

void write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    check(fd, "open", path);
    check(write(fd, text, strlen(text)), "write", path);
    close(fd);
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

_Noreturn void reap_until(pid_t program)
{
    int status;
    for (;;) {
        pid_t ended = waitpid(-1, &status, 0);
        if (ended == program)
            _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
        if (ended < 0 && errno != EINTR)
            _exit(1);
    }
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
