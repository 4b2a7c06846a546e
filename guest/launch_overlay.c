/* Overlays that are mounted with the rights of the host's root.
 *
 * Before Linux 6.6 a file system in memory takes no "user." attributes, by which an overlay of the sandbox's user namespace
 * marks a directory that hides what lies below it: nothing of the template that holds something could be removed. It always
 * took those that only an overlay of the host's root sets. So there a process of the launcher's, one for each start,
 * enters the sandbox's mount namespace and mounts what the child asks for. The child runs nothing but this program until
 * that is done. In files of the upper layer an overlay acts as who mounted it: that is the first of the sandbox's own ids,
 * the only kind that its file system takes, with the capabilities of the host's root. */
#include "launch.h"

#include "handover.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>

/* What to mount, and the directory to mount it on; -1 when there is nothing more to do. */
static int next_target(int orders, char options[OVERLAY_OPTIONS_MAX])
{
    size_t count = 1;
    int target;

    ssize_t size = take_over(orders, options, OVERLAY_OPTIONS_MAX - 1, &target, &count, 0);
    if (size <= 0 || !count)
        return -1;
    options[size] = '\0';
    return target;
}

static bool stand_for(uint32_t owner)
{
    return prctl(PR_SET_SECUREBITS, K_SECBIT_NO_SETUID_FIXUP, 0, 0, 0) == 0 && setresgid((gid_t)-1, owner, (gid_t)-1) == 0 &&
           setresuid((uid_t)-1, owner, (uid_t)-1) == 0;
}

/* The sandbox's mount namespace is there when the child has asked for something. Ends with the child's end of the socket,
 * and with the launcher: that is armed last, since a change of ids takes it away. */
static _Noreturn void mount_for(int sandbox, int orders, uint32_t owner, pid_t launcher)
{
    char options[OVERLAY_OPTIONS_MAX];
    int target;
    bool inside = false;

    prctl(PR_SET_NAME, "proofbox-mounts", 0, 0, 0);
    if (trim_descriptors(sandbox, orders) < 0 || !stand_for(owner) || prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 ||
        getppid() != launcher)
        _exit(1);
    while ((target = next_target(orders, options)) >= 0) {
        inside = inside || setns(sandbox, CLONE_NEWNS) == 0;
        bool done = inside && fchdir(target) == 0 &&
                    mount("overlay", ".", "overlay", MS_NOSUID | MS_NODEV, options) == 0;
        int32_t why = done ? 0 : errno;
        close(target);
        if (send(orders, &why, sizeof why, MSG_NOSIGNAL) < 0)
            break;
    }
    _exit(0);
}

int overlays_by_root(const struct blank *blank)
{
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -1;
    pid_t launcher = getpid();
    int sandbox = (int)syscall(SYS_pidfd_open, blank->pid, 0); /* not yet reaped, so the number is still its own */
    pid_t pid = sandbox < 0 ? -1 : fork();
    if (pid == 0)
        mount_for(sandbox, pair[1], blank->id_base, launcher);
    int why = errno;
    close(pair[1]);
    if (sandbox >= 0)
        close(sandbox);
    if (pid >= 0)
        return pair[0];
    close(pair[0]);
    errno = why;
    return -1;
}

void overlay_by_root(int mounter, int target, const char *options)
{
    int32_t why = 0;

    check(hand_over(mounter, options, strlen(options), &target, 1, 0) ? 0 : -1, "ask for overlay", options);
    ssize_t got = recv(mounter, &why, sizeof why, 0);
    if (got == sizeof why && why == 0)
        return;
    errno = got == sizeof why ? why : EPIPE; /* who was to mount it has ended */
    launch_fail("mount overlay", options);
}

void overlays_done(int mounter)
{
    char nothing;

    shutdown(mounter, SHUT_WR);
    while (recv(mounter, &nothing, 1, 0) > 0)
        ;
    close(mounter);
}
