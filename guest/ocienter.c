/*
 * Prepares a place for an OCI runtime: a mount namespace in which the bundle's root is the template below a writable
 * layer of limited size, and a PID namespace whose end ends everything that the runtime starts. Nothing of it shows on
 * the host, and all of it vanishes with this process.
 */
#include "ocienter.h"

#include "frame.h"
#include "launch_sys.h"
#include "userns.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>

/* mounts.c: a detached read-only copy of the mount at `path`; `userns` is -1 or the namespace that maps its ids. */
int mounts_open_tree(const char *path, int userns);

enum { CHANNEL = 3, LAYERS_MAX = 200, GROUPS_MAX = 32, RANGE = 65536, COMPLAINT_MAX = 2000 };
enum { CGROUP2_MAGIC = 0x63677270 };

struct layer {
    const char *target, *source;
    int tree; /* a detached mount of it */
    bool directory;
};

static struct {
    const char *bundle, *stage, *size, *inodes;
    long ids;
    int userns;
    struct layer layers[LAYERS_MAX], volumes[LAYERS_MAX];
    const char *groups[GROUPS_MAX];
    int layer_count, volume_count, group_count;
    char **program;
} plan = {.userns = -1};

static _Noreturn void fail(const char *step, const char *what)
{
    send_fatal(CHANNEL, step, what, errno);
    _exit(1);
}

static void check(long result, const char *step, const char *what)
{
    if (result < 0)
        fail(step, what);
}

static void write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    check(fd, "open", path);
    check(write(fd, text, strlen(text)), "write", path);
    close(fd);
}

/* Ends us with our parent from here on. It forgets that when credentials change. */
static void die_with_parent(void)
{
    check(prctl(PR_SET_PDEATHSIG, SIGKILL), "set parent death signal", "");
    struct pollfd channel = {.fd = CHANNEL, .events = 0};
    if (poll(&channel, 1, 0) > 0 && channel.revents & (POLLHUP | POLLERR))
        _exit(1); /* the client died before the signal was set */
}

static void add_layer(struct layer *layers, int *count, const char *target, const char *source)
{
    errno = E2BIG;
    if (*count == LAYERS_MAX)
        fail("take layer", source);
    layers[(*count)++] = (struct layer){.target = target, .source = source};
}

static void read_option(const char *name, const char *value, const char **target)
{
    if (!strcmp(name, "bundle"))
        plan.bundle = value;
    else if (!strcmp(name, "stage"))
        plan.stage = value;
    else if (!strcmp(name, "ids"))
        plan.ids = atol(value);
    else if (!strcmp(name, "userns"))
        plan.userns = atoi(value);
    else if (!strcmp(name, "size"))
        plan.size = value;
    else if (!strcmp(name, "inodes"))
        plan.inodes = value;
    else if (!strcmp(name, "target"))
        *target = value;
    else if (!strcmp(name, "layer"))
        add_layer(plan.layers, &plan.layer_count, *target, value);
    else if (!strcmp(name, "volume"))
        add_layer(plan.volumes, &plan.volume_count, "", value);
    else if (!strcmp(name, "group") && plan.group_count < GROUPS_MAX)
        plan.groups[plan.group_count++] = value;
    else {
        errno = EINVAL;
        fail("take option", name);
    }
}

static void read_plan(int count, char **words)
{
    const char *target = "/";
    int at = 3;
    for (; at + 1 < count && strcmp(words[at], "--") != 0; at += 2)
        read_option(words[at], words[at + 1], &target);
    plan.program = words + at + 1;
    errno = EINVAL;
    if (at + 1 >= count || !plan.bundle || !plan.stage || !plan.size || !plan.inodes || !plan.layer_count)
        fail("take options", "bundle, stage, size, inodes, a layer and a program are needed");
}

/* A user namespace that maps the ids on disk to the sandbox's, to mount layers through. */
static int id_map(void)
{
    int ready[2];
    char path[64], map[64], byte;
    check(pipe2(ready, O_CLOEXEC), "make pipe", "");
    pid_t holder = (pid_t)syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, NULL, NULL, NULL, NULL);
    check(holder, "make user namespace", "");
    if (holder == 0) {
        close(ready[1]);
        _exit(read(ready[0], &byte, 1) < 0);
    }
    snprintf(map, sizeof map, "0 %ld %d", plan.ids, RANGE);
    snprintf(path, sizeof path, "/proc/%d/uid_map", holder);
    write_file(path, map);
    snprintf(path, sizeof path, "/proc/%d/gid_map", holder);
    write_file(path, map);
    snprintf(path, sizeof path, "/proc/%d/ns/user", holder);
    int space = open(path, O_RDONLY | O_CLOEXEC);
    check(space, "open user namespace", "");
    close(ready[0]);
    close(ready[1]);
    while (waitpid(holder, NULL, 0) < 0 && errno == EINTR)
        ;
    return space;
}

/* Before anything is mounted that could hide them. */
static void open_trees(struct layer *layers, int count, int space)
{
    for (int i = 0; i < count; i++) {
        struct stat found;
        check(layers[i].tree = mounts_open_tree(layers[i].source, space), "open", layers[i].source);
        check(fstat(layers[i].tree, &found), "look at", layers[i].source);
        layers[i].directory = S_ISDIR(found.st_mode);
    }
}

/* Shows each at DIRECTORY/N in this mount namespace. A file needs a file there. */
static void show(const struct layer *layers, int count, const char *directory)
{
    char place[64];
    check(mount("tmpfs", directory, "tmpfs", 0, "mode=0711,size=1m"), "mount tmpfs", directory);
    for (int i = 0; i < count; i++) {
        snprintf(place, sizeof place, "%s/%d", directory, i);
        if (layers[i].directory)
            check(mkdir(place, 0755), "make directory", place);
        else
            check(mknod(place, S_IFREG | 0644, 0), "make file", place);
        check(syscall(SYS_move_mount, layers[i].tree, "", AT_FDCWD, place, K_MOVE_MOUNT_F_EMPTY_PATH), "mount",
              layers[i].source);
        close(layers[i].tree);
    }
}

/* The layers number `first` to `last` of one target, below a part of the writable layer. */
static void stack(int first, int last)
{
    char options[16 * LAYERS_MAX + 128], place[64], upper[64], work[64];
    struct stat top;
    int used = snprintf(options, sizeof options, "lowerdir=");
    for (int i = first; i < last; i++)
        used += snprintf(options + used, sizeof options - (size_t)used, "%slower/%d", i > first ? ":" : "", i);
    snprintf(place, sizeof place, "lower/%d", first);
    snprintf(upper, sizeof upper, "layer/upper%d", first);
    snprintf(work, sizeof work, "layer/work%d", first);
    check(stat(place, &top), "find", place);
    check(mkdir(upper, 0700), "make directory", upper);
    check(mkdir(work, 0700), "make directory", work);
    if (plan.ids) /* else there is no other id than ours to give it to */
        check(chown(upper, top.st_uid, top.st_gid), "own", upper);
    check(chmod(upper, top.st_mode & 07777), "own", upper);
    snprintf(options + used, sizeof options - (size_t)used, ",upperdir=%s,workdir=%s,userxattr", upper, work);
    char target[4096 + 16];
    snprintf(target, sizeof target, "rootfs%s", plan.layers[first].target);
    check(mount("overlay", target, "overlay", MS_NOSUID | MS_NODEV, options), "mount overlay", plan.layers[first].target);
}

static void make_writable_layer(void)
{
    char options[128];
    int used = snprintf(options, sizeof options, "mode=0711,size=%s", plan.size);
    if (strcmp(plan.inodes, "0") != 0)
        snprintf(options + used, sizeof options - (size_t)used, ",nr_inodes=%s", plan.inodes);
    check(mount("tmpfs", "layer", "tmpfs", MS_NOSUID | MS_NODEV, options), "mount tmpfs", options);
    check(mkdir("layer/shm", 0755), "make directory", "layer/shm");
    check(chown("layer/shm", (uid_t)plan.ids, (gid_t)plan.ids), "own", "layer/shm");
    check(chmod("layer/shm", 01777), "own", "layer/shm");
}

/* The bundle is seen at the stage: a short path, which the sandbox's ids may walk wherever the bundle lies. */
static void mount_root(void)
{
    check(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "make mounts private", "");
    int space = plan.ids ? id_map() : -1;
    open_trees(plan.layers, plan.layer_count, space);
    open_trees(plan.volumes, plan.volume_count, space);
    if (space >= 0)
        close(space);
    check(mount(plan.bundle, plan.stage, NULL, MS_BIND, NULL), "mount bundle", plan.stage);
    check(chdir(plan.stage), "enter", plan.stage);
    make_writable_layer();
    show(plan.layers, plan.layer_count, "lower");
    show(plan.volumes, plan.volume_count, "volume");
    for (int first = 0, i = 1; i <= plan.layer_count; i++)
        if (i == plan.layer_count || strcmp(plan.layers[i].target, plan.layers[first].target) != 0) {
            stack(first, i);
            first = i;
        }
}

/*
 * The cgroups are ours: the runtime finds them read-only, so that it cannot move the sandbox out of its limits, and
 * where a version 2 tree without controllers stands beside version 1, which crun takes for an error, it is covered.
 */
static void fix_cgroups(void)
{
    struct statfs found;
    if (statfs("/sys/fs/cgroup/unified", &found) == 0 && found.f_type == CGROUP2_MAGIC)
        check(mount("tmpfs", "/sys/fs/cgroup/unified", "tmpfs", MS_RDONLY, "size=4k"), "cover", "/sys/fs/cgroup/unified");
    struct k_mount_attr attributes = {.attr_set = K_MOUNT_ATTR_RDONLY};
    if (syscall(SYS_mount_setattr, AT_FDCWD, "/sys/fs/cgroup", K_AT_RECURSIVE, &attributes, sizeof attributes) < 0 &&
        errno != ENOENT && errno != EINVAL)
        fail("make read-only", "/sys/fs/cgroup");
}

/* Root of a user namespace: of the client's, whose ids are mapped; or alone in one, where our one id stands for root's. */
static void become_root(void)
{
    if (plan.userns >= 0) {
        check(userns_enter(plan.userns), "enter user namespace", "");
        check(setgroups(0, NULL), "drop groups", ""); /* the host's groups would go on to count inside */
        return;
    }
    check(userns_alone(), "make user namespace", "");
}

/* Its standard descriptors are pipes: crun makes the sandbox's root their owner, and the /dev/null that we have is the host's. */
static _Noreturn void run_program(int complaint)
{
    sigset_t none;
    int nothing[2];
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    check(pipe2(nothing, O_CLOEXEC), "make pipe", "");
    if (dup2(nothing[0], 0) < 0 || dup2(complaint, 1) < 0 || dup2(complaint, 2) < 0 || fcntl(CHANNEL, F_SETFD, 0) < 0)
        fail("duplicate", "descriptors");
    if (syscall(SYS_close_range, CHANNEL + 1, ~0u, 0) < 0)
        fail("close", "descriptors");
    execv(plan.program[0], plan.program);
    fail("run", plan.program[0]);
}

/* Init of the PID namespace around the runtime: when it ends, for whatever reason, the kernel ends all the others. */
static _Noreturn void init(int complaint)
{
    int status;
    die_with_parent();
    for (int i = 0; i < plan.group_count; i++) {
        char path[4200];
        snprintf(path, sizeof path, "%s/cgroup.procs", plan.groups[i]);
        write_file(path, "0");
    }
    fix_cgroups();
    check(mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL), "mount proc", "");
    pid_t program = fork();
    check(program, "fork", "");
    if (program == 0)
        run_program(complaint);
    close(complaint);
    close(CHANNEL); /* the guest's end is the guest's alone: its end must be seen at once */
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

/* Waits until init and with it every process of the sandbox is gone. What the runtime complained of meanwhile is told. */
static int await_end(pid_t pid, int complaint)
{
    char text[COMPLAINT_MAX];
    size_t used = 0;
    ssize_t size;
    int status;
    while ((size = read(complaint, text + used, sizeof text - 1 - used)) != 0) {
        if (size < 0 && errno != EINTR)
            break;
        used += size > 0 ? (size_t)size : 0;
        if (used == sizeof text - 1)
            used = 0; /* a flood of words is not kept */
    }
    text[used] = 0;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return 1;
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (code == 1 && used)
        send_fatal(CHANNEL, plan.program[0], text, 0); /* 1 and words is the runtime's own failure: the guest ends with other codes, and silently */
    return code;
}

/* Nothing can be told before this. */
static void take_channel(int count, char **words)
{
    int fd = count > 2 && !strcmp(words[1], "channel") ? atoi(words[2]) : -1;
    if (fd < 3 || (fd != CHANNEL && (dup2(fd, CHANNEL) < 0 || close(fd) < 0)))
        _exit(2);
}

int ocienter_main(int count, char **words)
{
    int complaint[2];
    sigset_t block, before;

    take_channel(count, words);
    die_with_parent();
    read_plan(count, words);
    if (!plan.ids)
        become_root();
    check(unshare(CLONE_NEWNS), "make mount namespace", "");
    die_with_parent(); /* again: becoming root in a namespace changed the credentials */
    mount_root();
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
    return await_end(pid, complaint[0]);
}
