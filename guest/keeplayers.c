#include "layers.h"

#include "handover.h"
#include "launch_sys.h"
#include "mounts.h"
#include "userns.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

enum { SLOTS_MOST = 200 };

struct packet {
    char kind;
    uint32_t numbers[SLOTS_MOST];
} __attribute__((packed));

static int control;
static uint32_t next_slot;

/* A file system in memory, not attached. -1 with errno. */
static int new_tmpfs(const char *size, const char *inodes)
{
    int context = (int)syscall(SYS_fsopen, "tmpfs", K_FSOPEN_CLOEXEC), made = -1;
    if (context < 0)
        return -1;
    if (syscall(SYS_fsconfig, context, K_FSCONFIG_SET_STRING, "mode", "0755", 0) == 0 &&
        syscall(SYS_fsconfig, context, K_FSCONFIG_SET_STRING, "size", size, 0) == 0 &&
        syscall(SYS_fsconfig, context, K_FSCONFIG_SET_STRING, "nr_inodes", inodes, 0) == 0 &&
        syscall(SYS_fsconfig, context, K_FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
        made = (int)syscall(SYS_fsmount, context, K_FSMOUNT_CLOEXEC, K_MOUNT_ATTR_NOSUID | K_MOUNT_ATTR_NODEV);
    int why = errno;
    close(context);
    errno = why;
    return made;
}

/* A root of our own, so that nothing of the host's tree is held by us, and nothing of ours is seen there. */
static bool leave_host(void)
{
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return false;
    int root = new_tmpfs("1m", "0");
    if (root < 0 || syscall(SYS_move_mount, root, "", AT_FDCWD, "/", K_MOVE_MOUNT_F_EMPTY_PATH) < 0 || fchdir(root) < 0)
        return false;
    close(root);
    return syscall(SYS_pivot_root, ".", ".") == 0 && umount2(".", MNT_DETACH) == 0 && chdir("/") == 0;
}

static void answer(char kind, uint32_t number, const int *fds, size_t count)
{
    struct packet packet = {.kind = kind, .numbers = {number}};

    if (!hand_over(control, &packet, 1 + sizeof number, fds, count, 0) && count) /* more in flight than a user may have */
        answer('E', (uint32_t)errno, NULL, 0);
}

static const char *place_of(uint32_t slot)
{
    static char place[16];
    snprintf(place, sizeof place, "/%u", slot);
    return place;
}

/* Into a slot of its own. With ``writable`` a descriptor of the same files that can be written to comes with the answer. */
static void attach(char kind, int tree, bool writable)
{
    struct k_mount_attr attributes = {.attr_set = K_MOUNT_ATTR_RDONLY | K_MOUNT_ATTR_NOSUID | K_MOUNT_ATTR_NODEV};
    const char *place = place_of(++next_slot);
    int clone = -1;

    if (tree < 0 || mkdir(place, 0700) < 0 ||
        syscall(SYS_move_mount, tree, "", AT_FDCWD, place, K_MOVE_MOUNT_F_EMPTY_PATH) < 0) {
        answer('E', (uint32_t)errno, NULL, 0);
        rmdir(place);
    } else if ((writable && (clone = mounts_clone(place)) < 0) ||
               syscall(SYS_mount_setattr, AT_FDCWD, place, 0, &attributes, sizeof attributes) < 0) {
        answer('E', (uint32_t)errno, NULL, 0);
        umount2(place, MNT_DETACH);
        rmdir(place);
    } else {
        answer(kind, next_slot, &clone, writable);
    }
    if (clone >= 0)
        close(clone);
}

static void make(uint32_t kib, uint32_t inodes)
{
    char size[16], count[16];
    snprintf(size, sizeof size, "%uk", kib);
    snprintf(count, sizeof count, "%u", inodes);
    int made = new_tmpfs(size, count);
    attach('M', made, true);
    if (made >= 0)
        close(made);
}

static void copy(const uint32_t *slots, size_t count)
{
    int fds[SLOTS_MOST];
    size_t made = 0;
    while (made < count && (fds[made] = mounts_clone(place_of(slots[made]))) >= 0)
        made++;
    if (made == count)
        answer('C', (uint32_t)count, fds, count);
    else
        answer('E', (uint32_t)errno, NULL, 0);
    while (made)
        close(fds[--made]);
}

/* False at the end of the connection. */
static bool serve(void)
{
    struct packet packet;
    size_t given = 1;
    int tree = -1;

    ssize_t size = take_over(control, &packet, sizeof packet, &tree, &given, 0);
    if (size < 0 && errno == EMFILE) {
        answer('E', EMFILE, NULL, 0);
        return true;
    }
    if (size <= 0)
        return size < 0 && errno == EINTR;
    size_t count = ((size_t)size - 1) / sizeof packet.numbers[0];
    uint32_t slots[SLOTS_MOST];
    memcpy(slots, packet.numbers, sizeof slots);
    if (packet.kind == 'A') {
        errno = EBADF;
        attach('A', tree, false);
    } else if (packet.kind == 'M' && count == 2) {
        make(slots[0], slots[1]);
    } else if (packet.kind == 'C' && count) {
        copy(slots, count);
    } else if (packet.kind == 'D' && count == 1) {
        umount2(place_of(slots[0]), MNT_DETACH);
        rmdir(place_of(slots[0]));
    } else {
        return false;
    }
    if (tree >= 0)
        close(tree);
    return true;
}

int keeplayers_main(int count, char **words)
{
    struct rlimit files;

    if (count != 4)
        return 2;
    control = atoi(words[1]);
    pid_t parent = (pid_t)atol(words[2]);
    /* Not a parent death signal: that one comes with the end of the thread that started us. */
    int client = (int)syscall(SYS_pidfd_open, parent, 0);
    if (client < 0 || getppid() != parent)
        return 1;
    fcntl(control, F_SETFD, FD_CLOEXEC);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    prctl(PR_SET_NAME, "proofbox-layers", 0, 0, 0);
    if (!userns_become_root(words[3]) || !leave_host()) {
        answer('E', (uint32_t)errno, NULL, 0);
        return 1;
    }
    struct pollfd watched[2] = {{.fd = control, .events = POLLIN}, {.fd = client, .events = POLLIN}};
    while (poll(watched, 2, -1) > 0 || errno == EINTR)
        if (watched[1].revents || (watched[0].revents && !serve()))
            break;
    return 0;
}
