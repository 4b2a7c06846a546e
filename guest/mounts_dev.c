/* /dev and /proc of a sandbox, made in the current directory, which is its stage. */
#include "launch.h"
#include "mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>

/* What is mounted there is looked for by its name. */
void mounts_enter(int root, const char *name)
{
    if (mkdirat(root, name, 0755) < 0 && errno != EEXIST)
        launch_fail("make directory", name);
    int here = openat(root, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    check(here, "open directory", name);
    check(fchdir(here), "enter directory", name);
    close(here);
}

/* The devices are the host's nodes, bound one by one. The directory is not sticky: with fs.protected_regular a write
 * to /dev/null by another user than its owner would fail. It lies in the writable layer, and so do /dev/shm's files:
 * both count there. */
void mounts_dev(const struct launch_setup *setup)
{
    static const char *const nodes[] = {"null", "zero", "full", "random", "urandom", "tty"};
    static const char *const links[][2] = {{"/proc/self/fd", "fd"},
                                           {"/proc/self/fd/0", "stdin"},
                                           {"/proc/self/fd/1", "stdout"},
                                           {"/proc/self/fd/2", "stderr"},
                                           {"pts/ptmx", "ptmx"}};
    char path[64];

    check(mkdir("dev", 0755), "make directory", "/dev");
    check(mount("dev", "dev", NULL, MS_BIND, NULL), "mount", "/dev");
    check(chdir("dev"), "enter directory", "/dev");
    for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++) {
        int fd = open(nodes[i], O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
        check(fd, "make device", nodes[i]);
        close(fd);
        snprintf(path, sizeof path, "/dev/%s", nodes[i]);
        check(mount(path, nodes[i], NULL, MS_BIND, NULL), "mount", path);
    }
    for (size_t i = 0; i < sizeof links / sizeof *links; i++)
        check(symlink(links[i][0], links[i][1]), "make link", links[i][1]);
    check(mkdir("pts", 0755), "make directory", "/dev/pts");
    const char *terminals = setup->full_ids || setup->nested_ids ? "newinstance,ptmxmode=0666,mode=0620,gid=5"
                                            : "newinstance,ptmxmode=0666,mode=0620";
    check(mount("devpts", "pts", "devpts", MS_NOSUID | MS_NOEXEC, terminals), "mount", "/dev/pts");
    check(mkdir("shm", 0755), "make directory", "/dev/shm");
    check(chmod("shm", 01777), "make directory", "/dev/shm");
    check(mkdir("mqueue", 0755), "make directory", "/dev/mqueue");
    check(mount("mqueue", "mqueue", "mqueue", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL), "mount", "/dev/mqueue");
    check(chown("mqueue", 0, 0), "own", "/dev/mqueue"); /* it is whoever's the namespace is, at nested ids each time another's */
}

/* A file gets /dev/null over it, a directory an empty one. */
static void hide(const char *path)
{
    if (mount("../dev/null", path, NULL, MS_BIND, NULL) == 0)
        return;
    if (errno == ENOTDIR)
        check(mount("../empty", path, NULL, MS_BIND, NULL), "mask /proc", path);
    else if (errno != ENOENT && errno != EACCES)
        launch_fail("mask /proc", path);
}

static void freeze(const char *path)
{
    struct k_mount_attr readonly = {.attr_set = K_MOUNT_ATTR_RDONLY};
    int tree = mounts_clone(path);
    if (tree < 0 && errno == ENOENT)
        return;
    check(tree, "make /proc read-only", path);
    check(syscall(SYS_mount_setattr, tree, "", K_AT_EMPTY_PATH, &readonly, sizeof readonly), "make /proc read-only", path);
    check(syscall(SYS_move_mount, tree, "", AT_FDCWD, path, K_MOVE_MOUNT_F_EMPTY_PATH), "make /proc read-only", path);
    close(tree);
}

/* The kernel refuses this where the host's own /proc is partly hidden (as in a container): nothing is unmasked. */
void mounts_proc(const struct launch_setup *setup)
{
    const char *at = setup->fields, *end = at + setup->fields_size;
    struct item item;

    check(mkdir("empty", 0555), "make directory", "empty");
    check(mkdir("proc", 0755), "make directory", "/proc");
    check(mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL), "mount", "/proc");
    check(chdir("proc"), "enter directory", "/proc");
    while (item_next(&at, end, &item) > 0) {
        if (item.tag == SETUP_MASK)
            hide(item.value.at);
        else if (item.tag == SETUP_READONLY)
            freeze(item.value.at);
    }
}
