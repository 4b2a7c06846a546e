/* By what a sandbox is told apart from its siblings: its machine id, and the number of its boot. */
#include "launch.h"
#include "mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

bool identity_put(const char *path, const char *text)
{
    char line[128];
    int size = snprintf(line, sizeof line, "%s\n", text);
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0444);

    if (fd < 0)
        return false;
    bool done = size < (int)sizeof line && write(fd, line, (size_t)size) == size;
    close(fd);
    return done;
}

bool identity_show(int root, const char *path, int tree)
{
    struct k_open_how how = {.flags = O_PATH | O_CLOEXEC, .resolve = K_RESOLVE_IN_ROOT | K_RESOLVE_NO_MAGICLINKS};
    struct stat found;
    int target = (int)syscall(SYS_openat2, root, path, &how, sizeof how);
    bool done = true;

    if (target >= 0 && !fstat(target, &found) && S_ISREG(found.st_mode))
        done = syscall(SYS_move_mount, tree, "", target, "", K_MOVE_MOUNT_F_EMPTY_PATH | K_MOVE_MOUNT_T_EMPTY_PATH) == 0;
    int why = errno;
    close(target);
    close(tree);
    errno = why;
    return done;
}

static void show(int root, const char *path, const char *source, const char *text)
{
    check(identity_put(source, text) ? 0 : -1, "make file", source);
    int tree = mounts_open_tree(source, -1);
    check(tree, "open", source);
    check(identity_show(root, path, tree) ? 0 : -1, "attach", path);
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
    show(root, MACHINE_ID_PATH, "/machine-id", request->machine_id);
    show(root, BOOT_ID_PATH, "/boot_id", request->boot_id);
}
