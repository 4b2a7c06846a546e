/* By what a sandbox is told apart from its siblings: its machine id, and the number of its boot. */
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

static void put_file(const char *path, const char *text)
{
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0444);
    check(fd, "make file", path);
    check(write(fd, text, strlen(text)), "write", path);
    check(write(fd, "\n", 1), "write", path);
    close(fd);
}

/* Read-only over a file that is there: a template without one has nobody who would read it. */
static void show(int root, const char *path, const char *source)
{
    struct k_mount_attr readonly = {.attr_set = K_MOUNT_ATTR_RDONLY};
    struct k_open_how how = {.flags = O_PATH | O_CLOEXEC, .resolve = K_RESOLVE_IN_ROOT | K_RESOLVE_NO_MAGICLINKS};
    struct stat found;
    int target = (int)syscall(SYS_openat2, root, path, &how, sizeof how);

    if (target < 0)
        return;
    if (!fstat(target, &found) && S_ISREG(found.st_mode)) {
        int tree = (int)syscall(SYS_open_tree, AT_FDCWD, source, K_OPEN_TREE_CLONE | K_OPEN_TREE_CLOEXEC);
        check(tree, "open", source);
        check(syscall(SYS_mount_setattr, tree, "", K_AT_EMPTY_PATH, &readonly, sizeof readonly), "make read-only", source);
        check(syscall(SYS_move_mount, tree, "", target, "", K_MOVE_MOUNT_F_EMPTY_PATH | K_MOVE_MOUNT_T_EMPTY_PATH),
              "attach", path);
        close(tree);
    }
    close(target);
}

/* On the stage, which is this much larger for them: another file system would cost as much as all the rest of them. */
size_t mounts_identity_size(const struct launch_request *request)
{
    return request->machine_id && request->boot_id ? 2 * (size_t)sysconf(_SC_PAGESIZE) : 0;
}

void mounts_identity(int root, const struct launch_request *request)
{
    if (!mounts_identity_size(request))
        return;
    put_file("/machine-id", request->machine_id);
    put_file("/boot_id", request->boot_id);
    show(root, "/etc/machine-id", "/machine-id");
    show(root, "/proc/sys/kernel/random/boot_id", "/boot_id");
}
