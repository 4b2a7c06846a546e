/* The launcher's half of a start: clone and ids for a blank; template layers, control groups and release for a request.
 * It never waits for the child. */
#include "control.h"
#include "group.h"
#include "launch.h"

#include "handover.h"
#include "mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

static bool failed(char error[256], const char *step, const char *what)
{
    snprintf(error, 256, "%s%s%s: %s", step, what ? " " : "", what ? what : "", strerror(errno));
    return false;
}

static bool put_of(pid_t pid, const char *name, const char *value)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    return control_write(path, value);
}

static bool write_maps(struct blank *out, const char *uids, const char *gids)
{
    if (!put_of(out->pid, "uid_map", uids))
        return failed(out->error, "write uid_map", uids);
    if (!put_of(out->pid, "gid_map", gids))
        return failed(out->error, "write gid_map", gids);
    return true;
}

static bool write_ids(const struct launch_setup *setup, struct blank *out)
{
    char uids[64], gids[64];

    if (setup->nested_ids)
        return write_maps(out, setup->uid_map.at, setup->gid_map.at);
    if (setup->full_ids) {
        snprintf(uids, sizeof uids, "0 %u 65536", out->id_base);
        return write_maps(out, uids, uids);
    }
    /* The kernel wants this before an unprivileged gid map: dropping a group must not widen what a user may read. */
    if (!put_of(out->pid, "setgroups", "deny"))
        return failed(out->error, "write setgroups", NULL);
    snprintf(uids, sizeof uids, "0 %u 1", setup->uid);
    snprintf(gids, sizeof gids, "0 %u 1", setup->gid);
    return write_maps(out, uids, gids);
}

static bool failed_group(struct blank *out, const char *path) { return failed(out->error, "make cgroup", path); }

static bool group_add(struct blank *out, const char *path)
{
    size_t size = strlen(path) + 1;
    char *more = realloc(out->groups, out->groups_size + size);
    if (!more) {
        errno = ENOMEM;
        return failed_group(out, path);
    }
    memcpy(more + out->groups_size, path, size);
    out->groups = more;
    out->groups_size += size;
    return true;
}

static bool group_make(struct blank *out, const char *path)
{
    if (mkdir(path, 0755) < 0)
        return failed_group(out, path);
    if (group_add(out, path))
        return true;
    rmdir(path);
    return false;
}

/* The groups that a child is to join, open. */
struct joins {
    int fds[GROUPS_MAX];
    size_t count;
};

static bool join_add(struct joins *joins, struct blank *out, const char *procs)
{
    errno = E2BIG;
    int fd = joins->count < GROUPS_MAX ? group_open(procs) : -1;
    if (fd < 0)
        return failed(out->error, "open cgroup", procs);
    joins->fds[joins->count++] = fd;
    return true;
}

/* Groups under a name that serves until the sandbox has its own: what is spent on a blank counts there already. */
static bool blank_groups(const struct launch_setup *setup, struct blank *out, struct joins *joins)
{
    const char *at = setup->fields, *end = at + setup->fields_size;
    struct item item;
    char path[4096 + 64];

    while (item_next(&at, end, &item) > 0) {
        if (item.tag != SETUP_GROUP_ROOT || item.value.size > 4096)
            continue;
        int size = snprintf(path, sizeof path, "%s/blank-%d", item.value.at, (int)out->pid);
        if (!group_make(out, path))
            return false;
        memcpy(path + size, "/cgroup.procs", sizeof "/cgroup.procs");
        if (!join_add(joins, out, path))
            return false;
    }
    return true;
}

/* The blank's own group below the same parent gets the name; it has joined it. NULL if there is none. */
static char *waiting_group(const struct blank *out, const char *path)
{
    size_t parent = parent_of(path);
    for (char *at = out->groups; at < out->groups + out->groups_size; at += strlen(at) + 1)
        if (parent_of(at) == parent && memcmp(at, path, parent) == 0 && strncmp(at + parent, "/blank-", 7) == 0)
            return at;
    return NULL;
}

static bool group_rename(struct blank *out, char *from, const char *to)
{
    if (rename(from, to) < 0)
        return failed_group(out, to);
    size_t size = strlen(from) + 1, behind = (size_t)(out->groups + out->groups_size - from) - size;
    memmove(from, from + size, behind);
    out->groups_size -= size;
    return group_add(out, to);
}

/* Carries the plan out in its order. A value is written into a group's file; an empty one has the child join it. */
static bool make_groups(const struct launch_request *request, struct blank *out, struct joins *joins)
{
    const char *at = request->fields, *end = at + request->fields_size, *joined[GROUPS_MAX];
    struct item item;
    size_t joined_count = 0;

    while (item_next(&at, end, &item) > 0) {
        const char *path = item.value.at;
        if (item.tag == LAUNCH_GROUP) {
            char *waiting = waiting_group(out, path);
            if (waiting ? !group_rename(out, waiting, path) : !group_make(out, path))
                return false;
            if (waiting && joined_count < GROUPS_MAX)
                joined[joined_count++] = path;
        }
        if (item.tag != LAUNCH_GROUP_WRITE)
            continue;
        const char *value = item_second(&item);
        bool done = false;
        for (size_t i = 0; !*value && i < joined_count; i++)
            done = done || (parent_of(path) == strlen(joined[i]) && memcmp(path, joined[i], parent_of(path)) == 0);
        if (!*value && !done && !join_add(joins, out, path))
            return false;
        if (*value && !control_write(path, value))
            return failed(out->error, "write cgroup", path);
    }
    return true;
}

bool groups_remove(char *groups, size_t *size)
{
    while (*size) {
        size_t last = *size - 1;
        while (last > 0 && groups[last - 1] != '\0')
            last--;
        if (rmdir(groups + last) < 0 && errno != ENOENT)
            return false;
        *size = last;
    }
    return true;
}

/* With a full id range the layers' ids are mapped so that what root owns outside belongs to the sandbox's root inside;
 * only the host's root may do that, so it happens here. */
static bool open_trees(const struct launch_request *request, struct blank *out, int *trees, size_t *count)
{
    const char *at = request->fields, *end = at + request->fields_size;
    struct item item;

    while (item_next(&at, end, &item) > 0) {
        if (item.tag != LAUNCH_LAYER && item.tag != LAUNCH_VOLUME)
            continue;
        const char *source = item_second(&item);
        int tree = mounts_open_tree(source, out->userns);
        if (tree < 0)
            return failed(out->error, item.tag == LAUNCH_LAYER ? "open layer" : "open volume", source);
        trees[(*count)++] = tree;
    }
    return true;
}

static bool open_userns(struct blank *blank)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/user", (int)blank->pid);
    blank->userns = open(path, O_RDONLY | O_CLOEXEC);
    return blank->userns >= 0 || failed(blank->error, "open user namespace", NULL);
}

static bool release(struct blank *out, struct joins *joins)
{
    struct release words = {(uint32_t)out->pid, out->id_base};
    bool sent = out->error[0] == '\0' && hand_over(out->sync, &words, sizeof words, joins->fds, joins->count, MSG_DONTWAIT);
    if (!sent && !out->error[0])
        failed(out->error, "release", NULL);
    while (joins->count)
        close(joins->fds[--joins->count]);
    return sent;
}

/* What the kernel counts for each user, in all user namespaces that somebody made (inotify instances and watches,
 * namespaces), it counts for who made them: made by us, all sandboxes would share what the host's root has, and one could
 * take all of it. So each is made as the first of its own ids, which nobody else has. With nested ids that is also what
 * limits the processes of all users of a sandbox together: they count against the limit that its maker had then. */
static bool stand_in(const struct launch_setup *setup, uint32_t owner, const struct launch_request *request,
                     struct rlimit *before)
{
    if (getrlimit(RLIMIT_NPROC, before) < 0)
        return false;
    /* Some hosts let only root make user namespaces: our capabilities are kept while we are somebody else. */
    if (setup->full_ids)
        (void)prctl(PR_SET_SECUREBITS, K_SECBIT_NO_SETUID_FIXUP, 0, 0, 0);
    struct rlimit lower = {setup->nested_ids ? request->processes : 0, before->rlim_max};
    if (lower.rlim_cur && lower.rlim_cur < before->rlim_cur && setrlimit(RLIMIT_NPROC, &lower) < 0)
        return false;
    /* A change of ids takes this away, and with it our access to the files of the child in /proc. */
    return setresuid((uid_t)-1, owner, (uid_t)-1) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0;
}

static void stand_back(const struct launch_setup *setup, const struct rlimit *before)
{
    if (setresuid((uid_t)-1, 0, (uid_t)-1) < 0 || setrlimit(RLIMIT_NPROC, before) < 0)
        _exit(74);
    if (setup->full_ids)
        (void)prctl(PR_SET_SECUREBITS, 0, 0, 0, 0);
}

void blank_make(const struct launch_setup *setup, const struct launch_request *request, uint32_t id_base, int self,
                struct blank *out)
{
    struct rlimit before;
    int sync[2];
    struct joins joins = {.count = 0};

    *out = (struct blank){.pid = -1, .sync = -1, .userns = -1, .id_base = id_base};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sync) < 0) {
        failed(out->error, "socketpair", NULL);
        return;
    }
    /* The other namespaces are made by the child itself: they cost more, and so they are made in parallel. */
    struct k_clone_args clone = {.flags = CLONE_NEWUSER | CLONE_NEWPID, .exit_signal = SIGCHLD};
    bool stands_in = setup->nested_ids || setup->full_ids;
    bool ready = !stands_in || stand_in(setup, id_base, request, &before);
    pid_t pid = ready ? (pid_t)syscall(SYS_clone3, &clone, sizeof clone) : -1;
    if (pid == 0)
        launch_child_main(setup, request && request->host_network, sync[1], self);
    int why = errno;
    if (stands_in)
        stand_back(setup, &before);
    close(sync[1]);
    errno = why;
    out->pid = pid;
    out->sync = sync[0];
    if (pid < 0) {
        failed(out->error, "clone", errno == EPERM || errno == ENOSPC ? "with a new user namespace" : NULL);
        return;
    }
    if (write_ids(setup, out) && (!setup->full_ids || open_userns(out)) && !request)
        blank_groups(setup, out, &joins);
    release(out, &joins);
}

void blank_close(struct blank *blank)
{
    if (blank->sync >= 0)
        close(blank->sync);
    if (blank->userns >= 0)
        close(blank->userns);
    blank->sync = blank->userns = -1;
}

/* Frozen layers belong to another sandbox's ids, which count from 0 in the namespace that their file system was made in. */
static bool map_frozen(struct blank *out, const int *layers, size_t count)
{
    struct k_mount_attr attributes = {.attr_set = K_MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)out->userns};
    for (size_t i = 0; i < count; i++)
        if (syscall(SYS_mount_setattr, layers[i], "", K_AT_EMPTY_PATH, &attributes, sizeof attributes) < 0)
            return failed(out->error, "map ids of", "frozen layer");
    return true;
}

void launch_start(const struct launch_setup *setup, const struct launch_request *request, struct text message,
                  struct blank *blank, const int *fds, size_t given)
{
    int handed[HANDED_MAX];
    size_t count = 0;
    struct joins joins = {.count = 0};

    memcpy(handed, fds, given * sizeof *fds);
    if (setup->full_ids && map_frozen(blank, fds + 2, given - 2))
        open_trees(request, blank, handed + given, &count);
    if (setup->root_overlays && !blank->error[0]) {
        int mounter = overlays_by_root(blank);
        if (mounter < 0)
            failed(blank->error, "fork", "to mount overlays");
        else
            handed[given + count++] = mounter;
    }
    /* It goes on as soon as it has the request: the control groups are made in parallel. */
    if (!blank->error[0] && !hand_over(blank->sync, message.at, message.size, handed, given + count, MSG_DONTWAIT))
        failed(blank->error, "release", NULL);
    while (count)
        close(handed[given + --count]);
    if (!blank->error[0])
        make_groups(request, blank, &joins);
    release(blank, &joins);
}
