/* The sandbox's half of a start: from the clone to the guest, in one process that never runs another program. */
#include "launch.h"

#include "frame.h"
#include "guest.h"
#include "handover.h"

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

/* Not on the stack, and not cleared: what is not used of it takes no memory. */
static char message[LAUNCH_MESSAGE_MAX + 1];
static int sync_socket = -1, channel = -1, status = -1, layer = -1;

/* The launcher's next message and its descriptors, at most `most` of them; how many there were. */
static size_t receive(void *into, size_t size, ssize_t *received, int *fds, size_t most)
{
    size_t count;

    do {
        count = most;
        *received = take_over(sync_socket, into, size, fds, &count, 0);
    } while (*received < 0 && errno == EINTR);
    if (*received <= 0)
        _exit(1); /* the launcher is gone, or failed at its half and says so itself */
    return count;
}

/* Waits for the launcher's word, and joins the control groups that come with it. A move between groups can wait for a
 * grace period of the kernel's: so each sandbox waits for itself, and the launcher for none. */
static struct release await_release(void)
{
    int fds[GROUPS_MAX];
    struct release release;
    ssize_t size;
    size_t count = receive(&release, sizeof release, &size, fds, GROUPS_MAX);

    if (size != sizeof release)
        _exit(1);
    for (size_t i = 0; i < count; i++) {
        check(write(fds[i], "0", 1), "join cgroup", "");
        close(fds[i]);
    }
    return release;
}

/* Waits for the request, which brings along the client's ends, frozen layers, where the launcher opens them the layers
 * and volumes, and the socket to who mounts overlays where it is not ourselves. Who fails early meets a word of release
 * before it, which is shorter than every request. */
static void await_request(bool opened, bool root_overlays, struct launch_request *request, struct trees *trees)
{
    int fds[HANDED_MAX];
    ssize_t size;
    size_t count;

    do
        count = receive(message, LAUNCH_MESSAGE_MAX, &size, fds, HANDED_MAX);
    while (size == sizeof(struct release));
    message[size] = '\0';
    if (count < 2 || !launch_read(message, (size_t)size, request))
        _exit(1);
    channel = fds[0];
    status = fds[1];
    size_t here = opened ? request->trees : 0;
    if (count - 2 < here + root_overlays || count - 2 - here - root_overlays > FROZEN_MAX)
        _exit(1);
    trees->mounter = root_overlays ? fds[--count] : -1;
    trees->frozen_count = count - 2 - here;
    memcpy(trees->frozen, fds + 2, trees->frozen_count * sizeof(int));
    memcpy(trees->opened, fds + 2 + trees->frozen_count, here * sizeof(int));
}

_Noreturn void launch_fail(const char *step, const char *what)
{
    char text[512];
    int why = errno;
    int size = snprintf(text, sizeof text, "F%s%s%s%s%s", step, *what ? " " : "", what, why ? ": " : "",
                        why ? strerror(why) : "");
    if (size >= (int)sizeof text)
        size = sizeof text - 1;
    if (status < 0) { /* a blank that failed tells the first one who asks for a sandbox */
        struct launch_request request;
        struct trees trees;
        await_request(false, false, &request, &trees);
    }
    send(status, text, (size_t)size, MSG_NOSIGNAL | MSG_DONTWAIT);
    char place[400];
    snprintf(place, sizeof place, "%s%s%s", step, *what ? " " : "", what);
    send_fatal(channel, "launch", place, why);
    _exit(1);
}

/* The launcher's descriptors of other sandboxes must not be seen in here. */
long trim_descriptors(int one, int other)
{
    unsigned low = (unsigned)(one < other ? one : other), high = (unsigned)(one < other ? other : one);

    if ((low > 3 && syscall(SYS_close_range, 3, low - 1, 0) < 0) ||
        (high > low + 1 && syscall(SYS_close_range, low + 1, high - 1, 0) < 0))
        return -1;
    return syscall(SYS_close_range, high + 1, ~0u, 0);
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

static void become_root(const struct launch_setup *setup)
{
    if (setup->full_ids || setup->nested_ids)
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
    /* No core file is that small, and 1 (not 0) keeps the host's handler of core dumps from being started. */
    struct rlimit none = {1, 1}, processes = {request->processes, request->processes};
    check(setrlimit(RLIMIT_CORE, &none), "set limit", "core");
    if (request->processes)
        check(setrlimit(RLIMIT_NPROC, &processes), "set limit", "processes");
}

/* What programs that are started can ever get. */
static void bound_capabilities(uint64_t keep)
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
}

/* Keeps the named capabilities in the permitted and effective sets, and none to inherit. */
static void lower_capabilities(uint64_t keep)
{
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
    umask(022);
}

/* Standard descriptors from inside, the channel as 3, nothing else. */
static void last_descriptors(void)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    check(null, "open", "/dev/null");
    for (int fd = 0; fd < 3; fd++)
        check(dup2(null, fd), "open", "/dev/null");
    check(status = fcntl(status, F_DUPFD_CLOEXEC, 6), "duplicate", "status");
    check(layer = fcntl(layer, F_DUPFD_CLOEXEC, 6), "duplicate", "writable layer");
    if (channel != 3)
        check(dup3(channel, 3, O_CLOEXEC), "duplicate", "channel");
    check(dup3(status, 4, O_CLOEXEC), "duplicate", "status");
    check(dup3(layer, 5, O_CLOEXEC), "duplicate", "writable layer");
    channel = 3, status = 4, layer = 5;
    check(syscall(SYS_close_range, 6, ~0u, 0), "close descriptors", "");
}

/* The last word before it becomes the guest, with the layer that it writes to: from here on the client owns that, and can
 * keep it when the sandbox has ended. */
static void report_ready(const struct release *release)
{
    struct {
        char tag;
        struct release release;
    } __attribute__((packed)) ready = {'R', *release};

    check(hand_over(status, &ready, sizeof ready, &layer, 1, 0) ? 0 : -1, "report", "");
    close(status);
    close(layer);
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

/* All that is the same for every sandbox. */
static void make_blank(const struct launch_setup *setup, bool host_network, int launcher)
{
    check(trim_descriptors(sync_socket, launcher), "close descriptors", "");
    die_with_launcher(launcher);
    plain_signals();
    prctl(PR_SET_NAME, "proofbox-blank", 0, 0, 0);
    setsid();
    int spaces = CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | (host_network ? 0 : CLONE_NEWNET);
    check(unshare(spaces), "make namespaces", "");
    await_release(); /* the ids are mapped */
    become_root(setup);
    die_with_launcher(launcher);
    check(layer = mounts_stage(setup), "take hold of writable layer", "");
    if (setup->full_ids)
        mounts_leave_host();
    if (!host_network)
        loopback_up();
    /* The keys of the caller's session are not for a sandbox. A user has 200 keys: when they are used up, the launcher's
     * keyring serves, which is empty, and in which the filter of system calls lets nobody put a key. */
    if (syscall(SYS_keyctl, K_KEYCTL_JOIN_SESSION_KEYRING, NULL) < 0 && errno != ENOSYS &&
        !(errno == EDQUOT && setup->keyring))
        launch_fail("make session keyring", "");
    bound_capabilities(setup->capabilities);
}

_Noreturn void launch_child_main(const struct launch_setup *setup, bool host_network, int sync, int launcher)
{
    struct trees trees;
    struct launch_request request;

    sync_socket = sync;
    make_blank(setup, host_network, launcher);
    await_request(setup->full_ids, setup->root_overlays, &request, &trees);
    if (!setup->full_ids) {
        mounts_open_trees(&request, &trees);
        mounts_leave_host();
    }
    mounts_root(&request, &trees);
    if (trees.mounter >= 0)
        overlays_done(trees.mounter);
    check(sethostname(request.hostname, strlen(request.hostname)), "set hostname", request.hostname);
    lower_limits(&request);
    struct release release = await_release();
    check(unshare(CLONE_NEWCGROUP), "make namespaces", "cgroup");
    prctl(PR_SET_NAME, "proofbox-guest", 0, 0, 0);
    last_descriptors();
    confine(setup);
    report_ready(&release);
    guest_main(3, 0);
}
