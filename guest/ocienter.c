/*
 * Prepares a place for an OCI runtime: a mount namespace in which the bundle's root is the template below a writable
 * layer of limited size, and a PID namespace whose end ends everything that the runtime starts. Nothing of it shows on
 * the host, and all of it vanishes with this process.
 */
#include "ocienter.h"

#include "control.h"
#include "enter.h"
#include "frame.h"
#include "handover.h"
#include "launch_sys.h"
#include "mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <sys/xattr.h>

enum { CHANNEL = 3, LAYERS_MAX = 200, FROZEN_MAX = 64, GROUPS_MAX = 32, RANGE = 65536, COMPLAINT_MAX = 2000 };
enum { CGROUP2_MAGIC = 0x63677270 };

struct layer {
    const char *target, *source;
    int tree; /* a detached mount of it */
    bool directory;
    bool frozen; /* the source is a directory in a frozen layer */
};

static struct {
    const char *bundle, *stage, *size, *inodes, *directory;
    long ids;
    bool detaches;
    const char *userns; /* how we become root where we are not the host's: userns.h */
    int status, at;
    struct layer layers[LAYERS_MAX], volumes[LAYERS_MAX];
    int frozen[FROZEN_MAX]; /* detached mounts of what other sandboxes wrote */
    long frozen_ids[FROZEN_MAX]; /* what their owners count from */
    const char *groups[GROUPS_MAX];
    int layer_count, volume_count, group_count, frozen_count;
    char **program;
} plan = {.userns = "one", .status = -1, .at = CHANNEL};

static void add_layer(struct layer *layers, int *count, const char *target, const char *source)
{
    errno = E2BIG;
    if (*count == LAYERS_MAX)
        fail("take layer", source);
    layers[(*count)++] = (struct layer){.target = target, .source = source};
}

static void add_frozen(const char *value)
{
    const char *base = strchr(value, ':');
    errno = E2BIG;
    if (!base || plan.frozen_count == FROZEN_MAX)
        fail("take frozen layer", value);
    plan.frozen[plan.frozen_count] = atoi(value);
    plan.frozen_ids[plan.frozen_count++] = atol(base + 1);
}

static void read_option(const char *name, const char *value, const char **target)
{
    if (!strcmp(name, "bundle"))
        plan.bundle = value;
    else if (!strcmp(name, "stage"))
        plan.stage = value;
    else if (!strcmp(name, "ids"))
        plan.ids = atol(value);
    else if (!strcmp(name, "at"))
        plan.at = atoi(value);
    else if (!strcmp(name, "detaches"))
        plan.detaches = !strcmp(value, "yes");
    else if (!strcmp(name, "directory"))
        plan.directory = value;
    else if (!strcmp(name, "userns"))
        plan.userns = value;
    else if (!strcmp(name, "size"))
        plan.size = value;
    else if (!strcmp(name, "inodes"))
        plan.inodes = value;
    else if (!strcmp(name, "target"))
        *target = value;
    else if (!strcmp(name, "layer"))
        add_layer(plan.layers, &plan.layer_count, *target, value);
    else if (!strcmp(name, "below")) {
        add_layer(plan.layers, &plan.layer_count, *target, value);
        plan.layers[plan.layer_count - 1].frozen = true;
    } else if (!strcmp(name, "frozen"))
        add_frozen(value);
    else if (!strcmp(name, "status"))
        plan.status = atoi(value);
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

/* A user namespace that maps ids from `first` on to the sandbox's, to mount layers through. */
static int id_map(long first)
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
    snprintf(map, sizeof map, "%ld %ld %d", first, plan.ids, RANGE);
    snprintf(path, sizeof path, "/proc/%d/uid_map", holder);
    check(control_write(path, map) ? 0 : -1, "write", path);
    snprintf(path, sizeof path, "/proc/%d/gid_map", holder);
    check(control_write(path, map) ? 0 : -1, "write", path);
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
        if (layers[i].frozen)
            continue;
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
        if (layers[i].frozen)
            continue;
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

/* What others wrote, beside the layers. As root each sandbox has ids of its own. */
static void show_frozen(void)
{
    char place[64];
    for (int i = 0; i < plan.frozen_count; i++) {
        if (plan.ids) {
            struct k_mount_attr attributes = {.attr_set = K_MOUNT_ATTR_IDMAP};
            int space = id_map(plan.frozen_ids[i]);
            attributes.userns_fd = (uint64_t)space;
            check(syscall(SYS_mount_setattr, plan.frozen[i], "", K_AT_EMPTY_PATH, &attributes, sizeof attributes),
                  "map ids of", "frozen layer");
            close(space);
        }
        snprintf(place, sizeof place, "lower/frozen%d", i);
        check(mkdir(place, 0711), "make directory", place);
        check(syscall(SYS_move_mount, plan.frozen[i], "", AT_FDCWD, place, K_MOVE_MOUNT_F_EMPTY_PATH), "mount", place);
        close(plan.frozen[i]);
    }
}

static void place_of(int index, char place[64])
{
    if (plan.layers[index].frozen)
        snprintf(place, 64, "lower/frozen%.32s", plan.layers[index].source);
    else
        snprintf(place, 64, "lower/%d", index);
}

/* The overlay shows its upper directory's own attributes for the target: they are those of what lies below. */
static void make_upper(const char *upper, const char *below)
{
    struct stat top;
    check(stat(below, &top), "find", below);
    check(mkdir(upper, 0700), "make directory", upper);
    if (chown(upper, owner_inside(top.st_uid), owner_inside(top.st_gid)) < 0 && errno != EINVAL && errno != EPERM) /* no id of ours */
        fail("own", upper);
    check(chmod(upper, top.st_mode & 07777), "own", upper);
    struct timespec times[2] = {top.st_atim, top.st_mtim};
    check(utimensat(AT_FDCWD, upper, times, 0), "own", upper);
}

/*
 * Before Linux 6.6 a tmpfs has none. Root can do with the other kind of marks there, which its layers have as well; for
 * others a directory in place of one that was removed cannot be made.
 */
static bool takes_user_attributes(void)
{
    return setxattr("layer/written", "user.proofbox", "", 0, 0) == 0 && removexattr("layer/written", "user.proofbox") == 0;
}

/* The layers from `first` to before `last` are of one target, the `number`th: below a part of the writable layer. */
static void stack(int first, int last, int number)
{
    char options[16 * LAYERS_MAX + 128], place[64], upper[64], work[64];
    size_t used = (size_t)snprintf(options, sizeof options, "lowerdir=");
    for (int i = first; i < last; i++) {
        place_of(i, place);
        errno = E2BIG;
        if (used + strlen(place) + 128 > sizeof options)
            fail("stack layers", plan.layers[first].target);
        used += (size_t)snprintf(options + used, sizeof options - used, "%s%s", i > first ? ":" : "", place);
    }
    place_of(first, place);
    snprintf(upper, sizeof upper, "layer/written/%d", number);
    snprintf(work, sizeof work, "layer/work%d", number);
    make_upper(upper, place);
    check(mkdir(work, 0700), "make directory", work);
    snprintf(options + used, sizeof options - used, ",upperdir=%s,workdir=%s%s", upper, work,
             plan.ids && !takes_user_attributes() ? ",redirect_dir=nofollow,metacopy=off" : ",userxattr");
    char target[4096 + 16];
    snprintf(target, sizeof target, "rootfs%s", plan.layers[first].target);
    check(mount("overlay", target, "overlay", MS_NOSUID | MS_NODEV, options), "mount overlay", plan.layers[first].target);
}

/* A detached mount of what the sandbox will write over its template, and of nothing else, for the client to keep. */
static void hand_out_layer(void)
{
    int layer = mounts_clone("layer/written");
    check(layer, "take hold of", "layer");
    check(hand_over(plan.status, "L", 1, &layer, 1, 0) ? 0 : -1, "hand out", "layer");
    close(layer);
    close(plan.status);
}

static void make_writable_layer(void)
{
    char options[128];
    int used = snprintf(options, sizeof options, "mode=0711,size=%s", plan.size);
    if (strcmp(plan.inodes, "0") != 0)
        snprintf(options + used, sizeof options - (size_t)used, ",nr_inodes=%s", plan.inodes);
    check(mount("tmpfs", "layer", "tmpfs", MS_NOSUID | MS_NODEV, options), "mount tmpfs", options);
    check(mkdir("layer/written", 0711), "make directory", "layer/written");
    check(mkdir("layer/shm", 0755), "make directory", "layer/shm");
    check(chown("layer/shm", (uid_t)plan.ids, (gid_t)plan.ids), "own", "layer/shm");
    check(chmod("layer/shm", 01777), "own", "layer/shm");
    if (plan.status >= 0)
        hand_out_layer();
}

static void refuse_link(const char *place)
{
    struct stat found;
    if (lstat(place, &found) == 0 && !S_ISDIR(found.st_mode)) {
        errno = ENOTDIR;
        fail("mount on the template's", place + strlen("rootfs"));
    }
}

/* runc 1.1 makes links in /dev by their names, before the root is the sandbox's: were /dev a link of the template's, they
 * would be made where it leads, on the host. */
static void refuse_links(void)
{
    refuse_link("rootfs/dev");
    refuse_link("rootfs/proc");
}

/* What is mounted from the root itself must be in it: a link of the template's would lead to the host's. */
static void make_directory(const char *path)
{
    char place[4200];
    struct stat found;
    snprintf(place, sizeof place, "rootfs%s", path);
    if (mkdir(place, 0700) == 0) {
        check(chown(place, (uid_t)plan.ids, (gid_t)plan.ids), "own", path);
        check(chmod(place, 01777), "own", path);
    }
    if (lstat(place, &found) < 0 || !S_ISDIR(found.st_mode)) {
        errno = ENOTDIR;
        fail("mount the template's", path);
    }
}

/* A runtime with a kernel of its own makes places for its mounts in what it is shown, and they would be found in what the
 * sandbox wrote. Nothing inside sees what lies there. */
static void cover_places(void)
{
    static const char *const places[] = {"rootfs/dev", "rootfs/proc", "rootfs/sys"};
    char options[80];
    snprintf(options, sizeof options, "mode=0755,size=1m,uid=%ld,gid=%ld", plan.ids, plan.ids);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        refuse_link(places[i]);
        if (mkdir(places[i], 0755) == 0)
            check(chown(places[i], (uid_t)plan.ids, (gid_t)plan.ids), "own", places[i]);
        check(mount("tmpfs", places[i], "tmpfs", MS_NOSUID | MS_NODEV, options), "cover", places[i]);
    }
}

/* The bundle is seen at the stage: a short path, which the sandbox's ids may walk wherever the bundle lies. */
static void mount_root(void)
{
    check(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "make mounts private", "");
    int space = plan.ids ? id_map(0) : -1;
    open_trees(plan.layers, plan.layer_count, space);
    open_trees(plan.volumes, plan.volume_count, space);
    if (space >= 0)
        close(space);
    check(mount(plan.bundle, plan.stage, NULL, MS_BIND, NULL), "mount bundle", plan.stage);
    check(chdir(plan.stage), "enter", plan.stage);
    make_writable_layer();
    show(plan.layers, plan.layer_count, "lower");
    show_frozen();
    show(plan.volumes, plan.volume_count, "volume");
    for (int first = 0, number = 0, i = 1; i <= plan.layer_count; i++)
        if (i == plan.layer_count || strcmp(plan.layers[i].target, plan.layers[first].target) != 0) {
            stack(first, i, number++);
            first = i;
        }
    refuse_links();
    if (plan.directory) {
        make_directory(plan.directory);
        cover_places();
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

/* crun gives its standard descriptors to the sandbox's root, whatever they are. The host's /dev/null must not be one of
 * them: its mode could be changed from inside. So they are pipes of this sandbox's own. */
static _Noreturn void run_program(int complaint)
{
    int nothing[2];
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    check(pipe2(nothing, O_CLOEXEC), "make pipe", "");
    if (dup2(plan.at ? nothing[0] : CHANNEL, 0) < 0 || dup2(complaint, 1) < 0 || dup2(complaint, 2) < 0 ||
        fcntl(CHANNEL, F_SETFD, plan.at ? 0 : FD_CLOEXEC) < 0)
        fail("duplicate", "descriptors");
    if (syscall(SYS_close_range, CHANNEL + 1, ~0u, 0) < 0)
        fail("close", "descriptors");
    execv(plan.program[0], plan.program);
    fail("run", plan.program[0]);
}

/* Init of the PID namespace around the runtime: when it ends, for whatever reason, the kernel ends all the others. */
static _Noreturn void init(int complaint)
{
    die_with_parent();
    join_groups(plan.groups, plan.group_count);
    fix_cgroups();
    check(mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL), "mount proc", "");
    pid_t program = fork();
    check(program, "fork", "");
    if (program == 0)
        run_program(complaint);
    close(complaint);
    close(CHANNEL); /* the guest's end is the guest's alone: its end must be seen at once */
    reap_until(program, plan.detaches);
}

/* Nothing can be told before this. */
static void take_channel(int count, char **words)
{
    int fd = count > 2 && !strcmp(words[1], "channel") ? atoi(words[2]) : -1;
    if (fd < 3 || (fd != CHANNEL && (dup2(fd, CHANNEL) < 0 || close(fd) < 0)))
        _exit(2);
    enter_channel = CHANNEL;
}

int ocienter_main(int count, char **words)
{
    char complaint[COMPLAINT_MAX];

    take_channel(count, words);
    die_with_parent();
    read_plan(count, words);
    if (!plan.ids)
        become_root(plan.userns);
    check(unshare(CLONE_NEWNS), "make mount namespace", "");
    die_with_parent(); /* again: becoming root in a namespace changed the credentials */
    mount_root();
    int code = run_in_pid_namespace(init, complaint, sizeof complaint);
    if (code >= 1 && code <= 128 && complaint[0])
        send_fatal(CHANNEL, plan.program[0], complaint, 0); /* a status and words are the runtime's own failure: the guest ends silently */
    return code;
}
