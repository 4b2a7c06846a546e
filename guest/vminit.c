/* Init of a virtual machine: from the kernel's first process to a launcher with one sandbox. docs/microvm.md has the
 * messages.
 *
 * The sandbox in the machine is made by the launcher as anywhere else. Init is outside of it, on the machine's side: what
 * it does is what a host does for `native`. It trusts who speaks on its control port, and nothing that runs in the sandbox
 * can reach that. */
#include "vminit.h"

#include "files.h"
#include "frame.h"
#include "handover.h"
#include "launch.h"
#include "vmrenew.h"
#include "vmusage.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

enum { LATE_MAX = 20, DEVICE_US = 20000, DEVICE_WAITS = 3000 };
enum { MESSAGE_MACHINE = 3, MESSAGE_USAGE = 4, MESSAGE_RENEW = 5 };
enum { MACHINE_ENTROPY = 1, MACHINE_CLOCK, MACHINE_IMAGES, MACHINE_HOSTNAME, MACHINE_ID, MACHINE_BOOT_ID };

#define ENTROPY_MAX 512
#define TASKS_MOST "4194304" /* that a kernel can number */
#define K_RNDADDENTROPY 0x40085203
#define K_RNDRESEEDCRNG 0x5207

static struct {
    int control, channel; /* the ports */
    int launcher;         /* our end of its control socket */
    int status;           /* what it tells of the sandbox */
    int layer;            /* what the sandbox writes to; -1 until it is ready */
    struct release first; /* its first process, and who that is outside of it */
    pid_t pid;
    int late[LATE_MAX], late_count; /* modules that are to be loaded when it is known whose machine this is */
} vm = {.control = -1, .channel = -1, .launcher = -1, .status = -1, .layer = -1, .pid = -1};

static char message[LAUNCH_MESSAGE_MAX + 1];

static _Noreturn void end_machine(void)
{
    for (;;) {
        reboot(RB_AUTOBOOT); /* the machine was started so that a reset ends it */
        pause();
    }
}

/* One record: its length, and what the host is told. */
static void tell(const void *bytes, size_t size)
{
    u8 head[4];
    put_u32(head, (u32)size);
    if (write_all(vm.control, head, sizeof head) || write_all(vm.control, bytes, size))
        end_machine();
}

static _Noreturn void fail(const char *step, const char *what)
{
    char text[512];
    int size = snprintf(text, sizeof text, "F%s%s%s: %s", step, *what ? " " : "", what, strerror(errno));
    if (vm.control >= 0)
        tell(text, size < (int)sizeof text ? (size_t)size : sizeof text - 1);
    else if ((size = open("/dev/kmsg", O_WRONLY | O_CLOEXEC)) >= 0)
        (void)!write(size, text, strlen(text)); /* the console is all there is */
    end_machine();
}

static void need(long result, const char *step, const char *what)
{
    if (result < 0)
        fail(step, what);
}

/* The next module in the order of their names, which is that of what they need; -1 if there is none. */
static int open_module(const char *form, int number)
{
    char path[32];
    snprintf(path, sizeof path, form, number);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 && errno != ENOENT)
        fail("open", path);
    unlink(path); /* it is not needed again */
    return file;
}

static void load_module(int file)
{
    if (syscall(SYS_finit_module, file, "", 0) < 0 && errno != EEXIST)
        fail("load module", "");
    close(file);
}

/* The drivers of disks come later: a state that knows of no disk serves machines with any. */
static void load_modules(void)
{
    int file;
    for (int i = 0; (file = open_module("/modules/%02d.ko", i)) >= 0; i++)
        load_module(file);
    while (vm.late_count < LATE_MAX && (file = open_module("/modules/late%02d.ko", vm.late_count)) >= 0)
        vm.late[vm.late_count++] = file;
}

/* The kernel has made some itself. */
static void directory(const char *path)
{
    if (mkdir(path, 0755) < 0 && errno != EEXIST)
        fail("make directory", path);
}

static void mount_at(const char *kind, const char *place, const char *options)
{
    directory(place);
    need(mount(kind, place, kind, MS_NOSUID | MS_NOEXEC, options), "mount", place);
}

/* The first file system of a machine can be no sandbox's: a root can only be changed for one that lies on another. */
static void leave_first_root(void)
{
    directory("/root");
    need(mount("tmpfs", "/root", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755"), "mount", "/root");
    need(chdir("/root"), "enter", "/root");
    need(mount(".", "/", NULL, MS_MOVE, NULL), "move", "/root");
    need(chroot("."), "enter", "/root");
    need(chdir("/"), "enter", "/");
    mount_at("devtmpfs", "/dev", "mode=0755");
    mount_at("proc", "/proc", NULL);
    mount_at("sysfs", "/sys", NULL);
    mount_at("cgroup2", "/cgroup", NULL);
    directory("/image");
}

static void set(const char *path, const char *value)
{
    int file = open(path, O_WRONLY | O_CLOEXEC);
    need(file, "open", path);
    need(write(file, value, strlen(value)), "set", path);
    close(file);
}

/*
 * The kernel draws limits of its own from the size of the machine, below those of the sandbox, and nobody would be told
 * which one was reached: it refuses memory and processes as if the program had asked for nonsense.
 */
static void lift_limits(void)
{
    rlim_t tasks = strtoul(TASKS_MOST, NULL, 10);
    struct rlimit most = {tasks, tasks};
    set("/proc/sys/vm/overcommit_memory", "1");
    set("/proc/sys/kernel/threads-max", TASKS_MOST);
    set("/proc/sys/kernel/pid_max", TASKS_MOST);
    need(setrlimit(RLIMIT_NPROC, &most), "lift limit", "processes");
    need(setrlimit(RLIMIT_SIGPENDING, &most), "lift limit", "signals");
}

/* Devices come when their drivers have found them. */
static int open_device(const char *path, int flags)
{
    int device = -1;
    for (int i = 0; i < DEVICE_WAITS && device < 0; i++) {
        device = open(path, flags | O_CLOEXEC);
        if (device < 0) {
            if (errno != ENOENT && errno != ENXIO && errno != ENODEV)
                break;
            usleep(i < 100 ? 1000 : DEVICE_US);
        }
    }
    return device;
}

/* A port reads as ended until the machine has been told that its other end is there. */
static int open_port(int number)
{
    static const char *const forms[] = {"/dev/vport0p%d", "/dev/vport1p%d", "/dev/vport2p%d"};
    char path[32];
    int port = -1;

    for (int i = 0; i < DEVICE_WAITS && port < 0; i++) {
        for (size_t form = 0; form < sizeof forms / sizeof *forms && port < 0; form++) {
            snprintf(path, sizeof path, forms[form], number);
            port = open(path, O_RDWR | O_CLOEXEC);
        }
        if (port < 0)
            usleep(i < 100 ? 1000 : DEVICE_US);
    }
    need(port, "open port", path);
    for (int i = 0; i < DEVICE_WAITS; i++) {
        struct pollfd connected = {.fd = port, .events = POLLIN};
        if (poll(&connected, 1, 0) >= 0 && !(connected.revents & POLLHUP))
            return port;
        usleep(i < 100 ? 1000 : DEVICE_US);
    }
    errno = ENOTCONN;
    fail("connect port", path);
}

static bool get_all(void *into, size_t size)
{
    char *at = into;
    while (size) {
        ssize_t done = read(vm.control, at, size);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        at += done;
        size -= (size_t)done;
    }
    return true;
}

/* The next record in `message`; its length. The end of the port is the end of the machine. */
static size_t next_record(void)
{
    u8 head[4];
    if (!get_all(head, sizeof head))
        end_machine();
    size_t size = get_u32(head);
    errno = EMSGSIZE;
    if (size < 1 || size > LAUNCH_MESSAGE_MAX)
        fail("read record", "");
    if (!get_all(message, size))
        end_machine();
    message[size] = '\0';
    return size;
}

static size_t expect(int kind)
{
    size_t size = next_record();
    errno = EPROTO;
    if (message[0] != kind)
        fail("read record", "of another kind");
    return size;
}

/* Machines that start from one saved state have the same random numbers ahead of them until this. */
static void add_entropy(const struct item *bytes)
{
    struct {
        int bits, size;
        char bytes[ENTROPY_MAX];
    } entropy = {(int)bytes->value.size * 8, (int)bytes->value.size, {0}};
    int device = open("/dev/urandom", O_WRONLY | O_CLOEXEC);

    errno = EMSGSIZE;
    if (bytes->value.size > ENTROPY_MAX)
        fail("add entropy", "");
    memcpy(entropy.bytes, bytes->value.at, bytes->value.size);
    need(device, "open", "/dev/urandom");
    need(ioctl(device, K_RNDADDENTROPY, &entropy), "add entropy", "");
    need(ioctl(device, K_RNDRESEEDCRNG), "renew random numbers", "");
    close(device);
}

static void set_clock(uint64_t nanoseconds)
{
    struct timespec now = {(time_t)(nanoseconds / 1000000000), (long)(nanoseconds % 1000000000)};
    need(clock_settime(CLOCK_REALTIME, &now), "set clock", "");
}

static void mount_images(uint64_t count)
{
    char device[] = "/dev/vda", place[] = "/image/0";
    for (int i = 0; i < vm.late_count; i++)
        load_module(vm.late[i]);
    for (uint64_t i = 0; i < count && i < 8; i++, device[7]++, place[7]++) {
        int found = open_device(device, O_RDONLY);
        need(found, "open", device);
        directory(place);
        need(mount(device, place, "erofs", MS_RDONLY | MS_NOSUID | MS_NODEV, NULL), "mount", device);
        close(found);
    }
}

/* What differs between machines that are started from one state, in a message of that many bytes. */
static struct vm_identity take_differences(size_t size)
{
    struct vm_identity identity = {NULL, NULL, NULL};
    const char *at = message + 1, *end = message + size;
    struct item item;
    int more;

    while ((more = item_next(&at, end, &item)) > 0) {
        switch (item.tag) {
        case MACHINE_ENTROPY: add_entropy(&item); break;
        case MACHINE_CLOCK: set_clock(item_number(&item)); break;
        case MACHINE_IMAGES: mount_images(item_number(&item)); break;
        case MACHINE_HOSTNAME: identity.hostname = item.value.at; break;
        case MACHINE_ID: identity.machine_id = item.value.at; break;
        case MACHINE_BOOT_ID: identity.boot_id = item.value.at; break;
        default: more = -1;
        }
        if (more < 0)
            break;
    }
    errno = EPROTO;
    if (more < 0)
        fail("read machine", "");
    return identity;
}

static void start_launcher(void)
{
    int pair[2];
    need(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), "make socket", "");
    vm.pid = fork();
    need(vm.pid, "fork", "");
    if (vm.pid == 0) {
        close(pair[0]);
        close(vm.control);
        close(vm.channel);
        _exit(launcher_main(pair[1]));
    }
    close(pair[1]);
    vm.launcher = pair[0];
}

/* One message to the launcher, with descriptors where some are given. */
static void hand_on(size_t size, const int *fds, size_t count)
{
    int room = LAUNCH_MESSAGE_MAX * 2;

    setsockopt(vm.launcher, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room);
    need(hand_over(vm.launcher, message, size, fds, count, 0) ? 0 : -1, "send to the launcher", "");
}

static void launch(void)
{
    int pair[2];
    size_t size = expect(MESSAGE_SETUP);

    start_launcher();
    hand_on(size, NULL, 0);
    size = expect(MESSAGE_LAUNCH);
    need(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), "make socket", "");
    hand_on(size, (int[]){vm.channel, pair[1]}, 2);
    close(pair[1]);
    close(vm.channel);
    vm.status = pair[0];
}

static void tell_usage(void)
{
    struct fields usage = {.length = 0};
    u8 reply[1 + sizeof usage.data] = "U";
    vmusage_read(vm.layer, &usage);
    memcpy(reply + 1, usage.data, usage.length);
    tell(reply, 1 + usage.length);
}

/* What the launcher says goes on to the host as it is; the layer stays here, to be measured. */
static void take_report(void)
{
    char text[1024];
    size_t count = 1;
    int layer;

    ssize_t size = take_over(vm.status, text, sizeof text, &layer, &count, 0);
    if (size < 0 && errno == EINTR)
        return;
    if (size <= 0)
        end_machine();
    if (count)
        vm.layer = layer;
    if (text[0] == 'R' && size == 1 + (ssize_t)sizeof vm.first)
        memcpy(&vm.first, text + 1, sizeof vm.first);
    if (text[0] == 'E')
        tell_usage(); /* how it ended: for want of memory? */
    tell(text, (size_t)size);
    if (text[0] == 'E')
        end_machine();
}

/* A machine that was copied while its sandbox ran is told so: what it was is another one's from here on. */
static void obey(void)
{
    size_t size = next_record();
    if (message[0] == MESSAGE_USAGE) {
        tell_usage();
        return;
    }
    errno = EPROTO;
    if (message[0] != MESSAGE_RENEW)
        fail("read record", "of another kind");
    struct vm_identity identity = take_differences(size);
    if (!vm.first.pid || !vmrenew((pid_t)vm.first.pid, vm.first.id_base, &identity))
        fail("renew", "");
    tell("N", 1);
}

static void serve(void)
{
    sigset_t child;
    struct signalfd_siginfo taken;

    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    int signals = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    need(signals, "watch children", "");
    for (;;) {
        struct pollfd wait[] = {{.fd = vm.status, .events = POLLIN}, {.fd = vm.control, .events = POLLIN}, {.fd = signals, .events = POLLIN}};
        if (poll(wait, 3, -1) < 0)
            continue;
        if (wait[0].revents)
            take_report();
        if (wait[1].revents)
            obey();
        while (read(signals, &taken, sizeof taken) > 0)
            ;
        for (pid_t gone; (gone = waitpid(-1, NULL, WNOHANG | __WALL)) > 0;)
            if (gone == vm.pid)
                end_machine(); /* its children went with it */
    }
}

_Noreturn void vminit_main(void)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    mount_at("devtmpfs", "/dev", "mode=0755"); /* a failure is told there until there are ports */
    load_modules();
    leave_first_root();
    lift_limits();
    vm.channel = open_port(1);
    vm.control = open_port(2);
    vmusage_prepare();
    tell("W", 1);
    take_differences(expect(MESSAGE_MACHINE));
    launch();
    serve();
    end_machine();
}
