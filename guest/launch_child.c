/* The sandbox's half of a start: from the clone to the guest, in one process that never runs another program. */
#include "launch.h"

#include "frame.h"
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

static int fail_channel = -1, fail_status = -1;

_Noreturn void launch_fail(const char *step, const char *what)
{
    char text[512];
    int why = errno;
    int size = snprintf(text, sizeof text, "F%s%s%s%s%s", step, *what ? " " : "", what, why ? ": " : "",
                        why ? strerror(why) : "");
    if (size >= (int)sizeof text)
        size = sizeof text - 1;
    send(fail_status, text, (size_t)size, MSG_NOSIGNAL | MSG_DONTWAIT);
    char place[400];
    snprintf(place, sizeof place, "%s%s%s", step, *what ? " " : "", what);
    send_fatal(fail_channel, "launch", place, why);
    _exit(1);
}

static void check(long result, const char *step, const char *what)
{
    if (result < 0)
        launch_fail(step, what);
}

/* Closes everything but these four. The launcher's descriptors of other sandboxes must not be seen in here. */
static void trim_descriptors(struct launch_child *child)
{
    int keep[4] = {child->channel, child->status, child->sync, child->launcher};
    for (int i = 0; i < 4; i++)
        for (int j = i + 1; j < 4; j++)
            if (keep[j] < keep[i]) {
                int lower = keep[j];
                keep[j] = keep[i];
                keep[i] = lower;
            }
    unsigned from = 3;
    for (int i = 0; i < 4; i++) {
        if ((unsigned)keep[i] > from)
            check(syscall(SYS_close_range, from, (unsigned)keep[i] - 1, 0), "close descriptors", "");
        from = (unsigned)keep[i] + 1;
    }
    check(syscall(SYS_close_range, from, ~0u, 0), "close descriptors", "");
}

/* The kernel ends us with the launcher from here on. It forgets that when ids change (not when capabilities are
 * dropped), so this runs twice. */
static void die_with_launcher(int launcher)
{
    check(prctl(PR_SET_PDEATHSIG, SIGKILL), "set parent death signal", "");
    struct pollfd gone = {.fd = launcher, .events = POLLIN};
    if (poll(&gone, 1, 0) != 0)
        _exit(1); /* it died before the signal was set; getppid() is 0 in a new PID namespace and tells nothing */
}

/* The launcher's word that ids, cgroups and layers are ready. Returns how many layers came with it. */
static size_t await_release(int sync, int *trees, uint32_t *pid)
{
    char control[CMSG_SPACE(LAUNCH_TREES_MAX * sizeof(int))];
    struct iovec part = {pid, sizeof *pid};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t size;

    do
        size = recvmsg(sync, &message, MSG_CMSG_CLOEXEC);
    while (size < 0 && errno == EINTR);
    if (size != sizeof *pid)
        _exit(1); /* the launcher failed at its half, and says so itself */
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (!head || head->cmsg_type != SCM_RIGHTS)
        return 0;
    size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    memcpy(trees, CMSG_DATA(head), count * sizeof(int));
    return count;
}

static void become_root(const struct launch_setup *setup)
{
    if (setup->full_ids)
        check(setgroups(0, NULL), "drop groups", ""); /* the host's groups would go on to count inside */
    check(setresgid(0, 0, 0), "set group", "");
    check(setresuid(0, 0, 0), "set user", "");
}

static void loopback_up(void)
{
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    check(fd, "raise loopback", "");
    check(ioctl(fd, SIOCSIFFLAGS, &request), "raise loopback", "");
    close(fd);
}

static void lower_limits(const struct launch_request *request)
{
    struct rlimit none = {0, 0}, processes = {request->processes, request->processes};
    check(setrlimit(RLIMIT_CORE, &none), "set limit", "core");
    if (request->processes)
        check(setrlimit(RLIMIT_NPROC, &processes), "set limit", "processes");
}

/* Keeps the named capabilities in the permitted and effective sets and in the bounding set, and none to inherit. */
static void lower_capabilities(uint64_t keep)
{
    for (int capability = 0; capability < 64; capability++) {
        if (keep >> capability & 1)
            continue;
        if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0) {
            if (errno == EINVAL)
                break; /* past the last one that this kernel knows */
            launch_fail("drop capability", "from the bounding set");
        }
    }
    struct k_cap_header header = {K_CAP_VERSION_3, 0};
    struct k_cap_data data[2] = {{(uint32_t)keep, (uint32_t)keep, 0},
                                 {(uint32_t)(keep >> 32), (uint32_t)(keep >> 32), 0}};
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    check(syscall(SYS_capset, &header, data), "set capabilities", "");
}

static void plain_signals(void)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    umask(022);
}

/* Standard descriptors from inside, the channel as 3, nothing else. */
static void last_descriptors(struct launch_child *child)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    check(null, "open", "/dev/null");
    for (int fd = 0; fd < 3; fd++)
        check(dup2(null, fd), "open", "/dev/null");
    if (child->channel != 3) {
        if (child->status == 3)
            check(child->status = fcntl(3, F_DUPFD_CLOEXEC, 4), "duplicate", "status");
        check(dup3(child->channel, 3, O_CLOEXEC), "duplicate", "channel");
    }
    fail_channel = 3;
    fail_status = child->status;
    check(fcntl(3, F_SETFD, FD_CLOEXEC), "duplicate", "channel");
    if (child->status > 4)
        check(syscall(SYS_close_range, 4, (unsigned)child->status - 1, 0), "close descriptors", "");
    check(syscall(SYS_close_range, (unsigned)child->status + 1, ~0u, 0), "close descriptors", "");
}

static void confine(const struct launch_setup *setup)
{
    struct k_filter_program program = {(unsigned short)(setup->filter_size / sizeof(struct k_filter_instruction)),
                                       setup->filter};
    lower_capabilities(setup->capabilities);
    check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "set no_new_privs", "");
    /* Commands may run as the same user as the guest: nobody inside may trace it or read its memory. */
    check(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "set not dumpable", "");
    check(syscall(SYS_seccomp, K_SECCOMP_SET_MODE_FILTER, 0, &program), "set seccomp filter", "");
}

_Noreturn void launch_child_main(const struct launch_setup *setup, const struct launch_request *request,
                                 struct launch_child child)
{
    int trees[LAUNCH_TREES_MAX];
    struct {
        char tag;
        uint32_t pid;
    } __attribute__((packed)) ready = {'R', 0};

    fail_channel = child.channel;
    fail_status = child.status;
    trim_descriptors(&child);
    die_with_launcher(child.launcher);
    plain_signals();
    setsid();
    int spaces = CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | (request->host_network ? 0 : CLONE_NEWNET);
    check(unshare(spaces), "make namespaces", "");
    uint32_t pid = 0;
    size_t count = await_release(child.sync, trees, &pid);
    become_root(setup);
    check(unshare(CLONE_NEWCGROUP), "make namespaces", "cgroup");
    mounts_root(setup, request, trees, count);
    if (!request->host_network)
        loopback_up();
    check(sethostname(request->hostname, strlen(request->hostname)), "set hostname", request->hostname);
    if (syscall(SYS_keyctl, K_KEYCTL_JOIN_SESSION_KEYRING, NULL) < 0 && errno != ENOSYS)
        launch_fail("make session keyring", "");
    lower_limits(request);
    die_with_launcher(child.launcher);
    last_descriptors(&child);
    confine(setup);
    ready.pid = pid;
    check(send(child.status, &ready, sizeof ready, MSG_NOSIGNAL), "report", "");
    close(child.status);
    guest_main(3, 0);
}
