/* The sandbox's file system, made in its own mount namespace. First a stage is mounted: a size-limited file system for
 * everything that the sandbox may write. It becomes the root of the namespace in the place of the host's tree, so that
 * what follows can reach nothing of the host but the layers and volumes that were opened for it. The sandbox's root is put
 * together on the stage and in the end mounted over it, as an initial RAM disk hands over to a system's root.
 *
 * No path of a template or of a volume's target is ever resolved from the host's root: a link in them leads to a place
 * in the sandbox, or nowhere. */
#include "mounts.h"

#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

static int clone_tree(const char *path, unsigned flags)
{
    return (int)syscall(SYS_open_tree, AT_FDCWD, path, K_OPEN_TREE_CLONE | K_OPEN_TREE_CLOEXEC | flags);
}

int mounts_clone(const char *path) { return clone_tree(path, 0); }

int mounts_open_tree(const char *path, int userns)
{
    struct k_mount_attr attributes = {.attr_set = K_MOUNT_ATTR_RDONLY | K_MOUNT_ATTR_NOSUID | K_MOUNT_ATTR_NODEV};
    unsigned recursive = 0;

    int tree = mounts_clone(path);
    if (tree < 0 && errno == EINVAL) {
        /* Without the rights over the host's tree, a directory and what is mounted below it stay together. */
        recursive = K_AT_RECURSIVE;
        tree = clone_tree(path, recursive);
    }
    if (tree < 0)
        return -1;
    if (userns >= 0) {
        attributes.attr_set |= K_MOUNT_ATTR_IDMAP;
        attributes.userns_fd = (uint64_t)userns;
        if (syscall(SYS_mount_setattr, tree, "", K_AT_EMPTY_PATH | recursive, &attributes, sizeof attributes) == 0)
            return tree;
        attributes.attr_set &= ~(uint64_t)K_MOUNT_ATTR_IDMAP; /* a file system that cannot: everything is nobody's */
        attributes.userns_fd = 0;
    }
    if (syscall(SYS_mount_setattr, tree, "", K_AT_EMPTY_PATH | recursive, &attributes, sizeof attributes) == 0)
        return tree;
    int why = errno;
    close(tree);
    errno = why;
    return -1;
}

/* The kernel gives up on ".." with EAGAIN while anybody on the host mounts or renames: on a busy one that is often. */
static int open_inside(int root, const char *path, uint64_t flags)
{
    struct k_open_how how = {.flags = O_CLOEXEC | flags, .resolve = K_RESOLVE_IN_ROOT | K_RESOLVE_NO_MAGICLINKS};
    int fd = -1;
    for (int tries = 0; tries < 10000 && fd < 0 && (tries == 0 || errno == EAGAIN); tries++)
        fd = (int)syscall(SYS_openat2, root, path, &how, sizeof how);
    return fd;
}

/* Opens a place to mount on, inside the sandbox's root; makes what is missing of it. */
int mounts_target(int root, const char *path, bool directory)
{
    char part[4096];
    size_t size = strlen(path);

    if (size >= sizeof part) {
        errno = ENAMETOOLONG;
        launch_fail("make target", path);
    }
    int fd = open_inside(root, path, O_PATH);
    int parent = root;
    for (size_t start = 0, end; fd < 0 && errno == ENOENT && start < size; start = end + 1) {
        end = start + strcspn(path + start, "/");
        if (end == start)
            continue;
        bool last = path[end + strspn(path + end, "/")] == '\0';
        memcpy(part, path, end);
        part[end] = '\0';
        int next = open_inside(root, part, O_PATH);
        if (next < 0 && errno == ENOENT) {
            char name[256];
            if (end - start >= sizeof name)
                launch_fail("make target", path);
            memcpy(name, path + start, end - start);
            name[end - start] = '\0';
            if (last && !directory) {
                int file = openat(parent, name, O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0644);
                check(file, "make target", path);
                close(file);
            } else {
                check(mkdirat(parent, name, 0755), "make target", path);
            }
            next = open_inside(root, part, O_PATH);
        }
        check(next, "make target", path);
        if (parent != root)
            close(parent);
        if (last)
            fd = next;
        parent = next;
        errno = ENOENT;
    }
    check(fd, "open target", path);
    return fd;
}

static void attach(int tree, int target, const char *what)
{
    check(syscall(SYS_move_mount, tree, "", target, "", K_MOVE_MOUNT_F_EMPTY_PATH | K_MOVE_MOUNT_T_EMPTY_PATH),
          "attach", what);
}

int mounts_stage(const struct launch_setup *setup)
{
    check(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "make mounts private", "");
    int context = (int)syscall(SYS_fsopen, "tmpfs", K_FSOPEN_CLOEXEC);
    check(context, "mount writable layer", "");
    check(syscall(SYS_fsconfig, context, K_FSCONFIG_SET_STRING, "source", "proofbox", 0), "mount writable layer", "");
    check(syscall(SYS_fsconfig, context, K_FSCONFIG_SET_STRING, "mode", "0755", 0), "mount writable layer", "");
    check(syscall(SYS_fsconfig, context, K_FSCONFIG_CMD_CREATE, NULL, NULL, 0), "mount writable layer", "");
    int stage = (int)syscall(SYS_fsmount, context, K_FSMOUNT_CLOEXEC, K_MOUNT_ATTR_NOSUID | K_MOUNT_ATTR_NODEV);
    check(stage, "mount writable layer", "");
    /* Over the root: this process's own root stays below it, so that every path of the host still leads there. */
    check(syscall(SYS_move_mount, stage, "", AT_FDCWD, "/", K_MOVE_MOUNT_F_EMPTY_PATH), "attach writable layer", "");
    check(fchdir(stage), "enter writable layer", "");
    mounts_dev(setup);
    check(fchdir(stage), "enter writable layer", "");
    mounts_proc(setup);
    check(fchdir(stage), "enter writable layer", "");
    close(stage);
    close(context);
    check(mkdir("layer", 0755), "make directory", "layer");
    return mounts_clone("layer");
}

void mounts_leave_host(void)
{
    check(syscall(SYS_pivot_root, ".", "."), "pivot root", "");
    check(umount2(".", MNT_DETACH), "let go of the host's tree", "");
    check(chdir("/"), "enter writable layer", "");
}

static void limit_stage(const struct launch_request *request)
{
    char options[128];
    unsigned long long size = request->disk ? request->disk + mounts_identity_size(request) : 0; /* 0 is no limit */
    snprintf(options, sizeof options, "size=%llu,nr_inodes=%llu", size, (unsigned long long)request->inodes);
    check(mount(NULL, "/", NULL, MS_REMOUNT | MS_NOSUID | MS_NODEV, options), "limit writable layer", options);
}

struct layers {
    char lower[4096]; /* "lowerdir=A:B:C"; the kernel takes one page of options */
    size_t used;
    char top[32];
};

static void add_lower(struct layers *layers, const char *place)
{
    int more = snprintf(layers->lower + layers->used, sizeof layers->lower - layers->used, "%c%s",
                        layers->used ? ':' : '=', place);
    if (!layers->used)
        snprintf(layers->top, sizeof layers->top, "%s", place);
    layers->used += (size_t)more;
    if (layers->used >= sizeof layers->lower - 256) {
        errno = E2BIG;
        launch_fail("stack layers", "");
    }
}

/* The overlay shows its upper directory's own attributes for the target: they are those of what lies below. */
static void make_upper(const char *upper, const char *top)
{
    struct stat below;

    check(mkdir(upper, 0755), "make upper directory", upper);
    check(stat(top, &below), "look at layer", top);
    uid_t user = owner_inside(below.st_uid), group = owner_inside(below.st_gid);
    if (chown(upper, user, group) < 0 && errno != EINVAL && errno != EPERM) /* no id of the sandbox's */
        launch_fail("own upper directory", upper);
    check(chmod(upper, below.st_mode & 07777), "own upper directory", upper);
    struct timespec times[2] = {below.st_atim, below.st_mtim};
    check(utimensat(AT_FDCWD, upper, times, 0), "own upper directory", upper);
}

/* One overlay of the layers in the current directory, `here`, all of one target. */
static void mount_overlay(const struct layers *layers, int number, int here, int mounter)
{
    char options[OVERLAY_OPTIONS_MAX], upper[64], work[64];

    snprintf(upper, sizeof upper, "/layer/%d", number);
    snprintf(work, sizeof work, "/work%d", number);
    make_upper(upper, layers->top);
    check(mkdir(work, 0755), "make work directory", work);
    /* With userxattr the others are off as well, whatever the kernel's defaults: no copy of a layer has such marks. */
    snprintf(options, sizeof options, "lowerdir%s,upperdir=%s,workdir=%s,%s", layers->lower, upper, work,
             mounter < 0 ? "userxattr" : "redirect_dir=nofollow,metacopy=off");
    if (mounter >= 0)
        overlay_by_root(mounter, here, options);
    else
        check(mount("overlay", ".", "overlay", MS_NOSUID | MS_NODEV, options), "mount overlay", options);
}

static bool seen_before(const struct launch_request *request, const struct item *layer)
{
    const char *at = request->fields, *end = at + request->fields_size;
    struct item item;
    while (item_next(&at, end, &item) > 0 && item.value.at != layer->value.at)
        if (item.tag == LAUNCH_LAYER && strcmp(item.value.at, layer->value.at) == 0)
            return true;
    return false;
}

static void attach_frozen(const struct trees *trees)
{
    char place[32];
    for (size_t i = 0; i < trees->frozen_count; i++) {
        snprintf(place, sizeof place, "/frozen%zu", i);
        check(mkdir(place, 0755), "make directory", place);
        check(syscall(SYS_move_mount, trees->frozen[i], "", AT_FDCWD, place, K_MOVE_MOUNT_F_EMPTY_PATH),
              "attach frozen layer", "");
        close(trees->frozen[i]);
    }
}

/* All layers of one target are moved into the stage and stacked, and the parts of frozen ones that belong to it. */
static void stack_target(const struct launch_request *request, const char *target, const struct trees *trees, int *root,
                         int number)
{
    const char *at = request->fields, *end = at + request->fields_size;
    struct item item;
    struct layers layers = {.used = 0};
    char place[32];
    int index = -1;

    while (item_next(&at, end, &item) > 0) {
        index += item.tag == LAUNCH_LAYER || item.tag == LAUNCH_VOLUME;
        if ((item.tag != LAUNCH_LAYER && item.tag != LAUNCH_FROZEN) || strcmp(item.value.at, target) != 0)
            continue;
        if (item.tag == LAUNCH_FROZEN) {
            snprintf(place, sizeof place, "/frozen%.16s", item_second(&item));
        } else {
            snprintf(place, sizeof place, "/%d", index);
            check(mkdir(place, 0755), "make directory", place);
            check(syscall(SYS_move_mount, trees->opened[index], "", AT_FDCWD, place, K_MOVE_MOUNT_F_EMPTY_PATH),
                  "attach layer", item_second(&item));
            close(trees->opened[index]);
        }
        add_lower(&layers, place);
    }
    errno = 0;
    if (!layers.used)
        launch_fail("find a layer for", target);
    int here = *root < 0 ? open("/root", O_PATH | O_CLOEXEC) : mounts_target(*root, target, true);
    check(here, "open target", target);
    check(fchdir(here), "enter target", target);
    mount_overlay(&layers, number, here, trees->mounter);
    close(here);
    if (*root < 0)
        check(*root = open("/root", O_PATH | O_DIRECTORY | O_CLOEXEC), "open root", "");
}

static void attach_volume(int root, const struct item *volume, int tree)
{
    struct stat found;
    struct statvfs flags;

    check(fstat(tree, &found), "look at volume", item_second(volume));
    int target = mounts_target(root, volume->value.at, S_ISDIR(found.st_mode));
    attach(tree, target, volume->value.at);
    close(target);
    /* Believe the result, not the request: a file system may drop the read-only flag. */
    target = open_inside(root, volume->value.at, O_PATH);
    check(target, "open volume", volume->value.at);
    check(fstatvfs(target, &flags), "look at volume", volume->value.at);
    errno = 0;
    if (!(flags.f_flag & ST_RDONLY))
        launch_fail("make volume read-only", volume->value.at);
    close(target);
    close(tree);
}

void mounts_open_trees(const struct launch_request *request, struct trees *trees)
{
    const char *at = request->fields, *end = at + request->fields_size;
    struct item item;
    size_t count = 0;

    while (item_next(&at, end, &item) > 0)
        if (item.tag == LAUNCH_LAYER || item.tag == LAUNCH_VOLUME) {
            trees->opened[count] = mounts_open_tree(item_second(&item), -1);
            check(trees->opened[count++], item.tag == LAUNCH_LAYER ? "open layer" : "open volume", item_second(&item));
        }
}

static void move_in(int root, const char *name, const char *stage)
{
    mounts_enter(root, name);
    check(mount(stage, ".", NULL, MS_MOVE, NULL), "attach", stage);
}

void mounts_root(const struct launch_request *request, const struct trees *trees)
{
    const char *at = request->fields, *end = at + request->fields_size;
    struct item item;
    int root = -1, number = 0, index = 0;

    limit_stage(request);
    attach_frozen(trees);
    check(mkdir("/root", 0755), "make directory", "root");
    stack_target(request, "/", trees, &root, number++);
    while (item_next(&at, end, &item) > 0)
        if (item.tag == LAUNCH_LAYER && strcmp(item.value.at, "/") != 0 && !seen_before(request, &item))
            stack_target(request, item.value.at, trees, &root, number++);
    move_in(root, "dev", "/dev");
    move_in(root, "proc", "/proc");
    mounts_identity(root, request);
    for (at = request->fields; item_next(&at, end, &item) > 0;) {
        if (item.tag == LAUNCH_VOLUME)
            attach_volume(root, &item, trees->opened[index]);
        index += item.tag == LAUNCH_LAYER || item.tag == LAUNCH_VOLUME;
    }
    check(fchdir(root), "enter root", "");
    close(root);
    check(mount(".", "/", NULL, MS_MOVE, NULL), "attach root", "");
    check(chroot("."), "enter root", "");
    check(chdir("/"), "enter root", "/");
}
