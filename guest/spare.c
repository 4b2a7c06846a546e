/* A supervisor made ahead, with the two pipes that most commands need: the next such command does not wait for a fork.
 *
 * It is made while a command runs, so that its making costs nobody's time, and only from the second command on: a sandbox that
 * runs one command and goes has none, unless it waits anyway. In gVisor a fork takes milliseconds of all processors, and the
 * command that runs would pay for it: there none is made but for a sandbox that waits. Code inside may kill or stop it: then the
 * next command makes its own. */
#include "guest.h"
#include "stream.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct {
    pid_t pid; /* 0: there is none */
    int control, out, err;
    u32 commands;
    u8 none;
    char user[256]; /* of the latest command: likely the next one's too */
} spare;

static int is_plain(const struct run *run)
{
    return run->kind != KIND_FILE && !run->stdin_pipe && !run->channel && !run->has_pty && !run->merge;
}

static void close_pair(const int *pair)
{
    for (int i = 0; i < 2; i++)
        if (pair[i] >= 0)
            close(pair[i]);
}

/* Nothing but the command that has just started lives here: a fork now takes no place from anybody. */
static int is_quiet(void)
{
    int alive = 0;
    EACH_STREAM(s)
        alive += s->supervisor > 0;
    return alive <= 1 && !guest.killing_all;
}

/* `fresh`: as for one that is made when it is asked for, the start of a short command is not told. */
static void make(u8 fresh)
{
    int control[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1};
    if (spare.pid || !is_quiet())
        return;
    if (!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control) && !pipe2(out, O_CLOEXEC) && !pipe2(err, O_CLOEXEC) &&
        !fcntl(out[0], F_SETFL, O_NONBLOCK) && !fcntl(err[0], F_SETFL, O_NONBLOCK)) {
        struct ends ends = {.control = control[1], .in = guest.null, .out = out[1], .err = err[1], .channel = -1, .fresh = fresh};
        long pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (pid == 0)
            spare_main(&ends, spare.user);
        if (pid > 0) {
            spare.pid = (pid_t)pid;
            spare.control = control[0];
            spare.out = out[0];
            spare.err = err[0];
            control[0] = out[0] = err[0] = -1;
        }
    }
    close_pair(control);
    close_pair(out);
    close_pair(err);
}

void spare_make(void)
{
    if (spare.commands >= 2 && !spare.none)
        make(0);
}

void spare_expect(void) { make(1); }

void spare_none(void) { spare.none = 1; }

int spare_take(struct stream *s, const struct run *run, const u8 *message, size_t length)
{
    if (!is_plain(run))
        return 0;
    spare.commands += spare.commands < 2;
    spare.user[0] = 0;
    if (run->user && strlen(run->user) < sizeof spare.user)
        text_add(spare.user, sizeof spare.user, run->user);
    if (!spare.pid || !message)
        return 0;
    if (send(spare.control, message, length, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)length) {
        spare_drop();
        return 0;
    }
    s->supervisor = spare.pid;
    s->control = spare.control;
    source_open(s, 1, spare.out, run->window, run->keep);
    source_open(s, 2, spare.err, run->window, run->keep);
    spare.pid = 0;
    return 1;
}

void spare_drop(void)
{
    if (!spare.pid)
        return;
    kill(spare.pid, SIGKILL);
    spare.pid = 0;
    close(spare.control);
    close(spare.out);
    close(spare.err);
}

pid_t spare_pid(void) { return spare.pid; }
