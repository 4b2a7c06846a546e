#include "vmrenew.h"

#include "launch.h"
#include "mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* A new file, as a mount to be attached: -1 with errno. It stays under its name: what has none cannot be attached. */
static int make_tree(const char *text, uid_t owner)
{
    static int made;
    char path[32];

    snprintf(path, sizeof path, "/renewed-%d", made++);
    return identity_put(path, text) && chown(path, owner, owner) == 0 ? mounts_open_tree(path, -1) : -1;
}

/* In a process of its own: who has gone into these namespaces does not come back. */
static int renew(int sandbox, int machine_id, int boot_id, const char *hostname)
{
    if (setns(sandbox, CLONE_NEWUTS | CLONE_NEWNS) < 0)
        return errno;
    if (hostname && sethostname(hostname, strlen(hostname)) < 0)
        return errno;
    int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root < 0)
        return errno;
    if (machine_id >= 0 && !identity_show(root, MACHINE_ID_PATH, machine_id))
        return errno;
    if (boot_id >= 0 && !identity_show(root, BOOT_ID_PATH, boot_id))
        return errno;
    return 0;
}

bool vmrenew(pid_t pid, uid_t owner, const struct vm_identity *identity)
{
    int status = 0, machine_id = -1, boot_id = -1;
    int sandbox = (int)syscall(SYS_pidfd_open, pid, 0);

    if (sandbox < 0)
        return false;
    if (identity->machine_id && (machine_id = make_tree(identity->machine_id, owner)) < 0)
        return false;
    if (identity->boot_id && (boot_id = make_tree(identity->boot_id, owner)) < 0)
        return false;
    pid_t child = fork();
    if (child == 0)
        _exit(renew(sandbox, machine_id, boot_id, identity->hostname));
    close(sandbox);
    close(machine_id);
    close(boot_id);
    if (child < 0)
        return false;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    errno = WIFEXITED(status) ? WEXITSTATUS(status) : EIO;
    return errno == 0;
}
