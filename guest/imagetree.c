#include "imagetree.h"

#include "launch_sys.h"
#include "mounts.h"
#include "userns.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>

static int failed(const char *step, const char *what)
{
    fprintf(stderr, "%s %s: %s\n", step, what, strerror(errno));
    return 1;
}

/* A file needs a file to lie on. */
static bool show(int tree, const char *place)
{
    struct stat found;
    if (fstat(tree, &found) < 0)
        return false;
    if (S_ISDIR(found.st_mode) ? mkdir(place, 0755) < 0 : mknod(place, S_IFREG | 0644, 0) < 0)
        return false;
    return syscall(SYS_move_mount, tree, "", AT_FDCWD, place, K_MOVE_MOUNT_F_EMPTY_PATH) == 0;
}

int imagetree_main(int argc, char **argv)
{
    int sources = 3, end = 3;
    pid_t parent = getppid();
    char place[32];

    while (end < argc && strcmp(argv[end], "--") != 0)
        end++;
    if (argc < 5 || end + 1 >= argc)
        return 2;
    if (!userns_become_root(argv[2]) || unshare(CLONE_NEWNS) < 0)
        return failed("make namespaces for", argv[1]);
    /* After the change of ids, which forgets it: who is killed half-way leaves no maker behind. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent)
        return failed("die with", "who wants the image");
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("tmpfs", argv[1], "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=1m") < 0)
        return failed("mount", argv[1]);
    for (int i = sources; i < end; i++) {
        int tree = mounts_open_tree(argv[i], -1);
        snprintf(place, sizeof place, "%d", i - sources);
        if (tree < 0 || chdir(argv[1]) < 0 || !show(tree, place))
            return failed("show", argv[i]);
        close(tree);
    }
    execv(argv[end + 1], argv + end + 1);
    return failed("run", argv[end + 1]);
}
