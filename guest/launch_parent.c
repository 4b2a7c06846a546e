/* The launcher's half of a start: clone and ids for a blank; template layers, control groups and release for a request.
 * It never waits for the child. */
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

static bool failed(char error[256], const char *step, const char *what)
{
    snprintf(error, 256, "%s%s%s: %s", step, what ? " " : "", what ? what : "", strerror(errno));
    return false;
}

/* One write(2): the kernel's control files take a value whole or not at all. */
static bool put(const char *path, const char *value, size_t size)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t done = write(fd, value, size);
    int why = errno;
    close(fd);
    errno = done < 0 ? why : EIO;
    return done == (ssize_t)size;
}

static bool put_of(pid_t pid, const char *name, const char *value, size_t size)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    return put(path, value, size);
}

static bool write_ids(const struct launch_setup *setup, struct blank *out)
{
    char uids[64], gids[64];
    int uids_size, gids_size;

    if (setup->full_ids) {
        uids_size = snprintf(uids, sizeof uids, "0 %u 65536\n", out->id_base);
        gids_size = snprintf(gids, sizeof gids, "0 %u 65536\n", out->id_base);
    } else {
        /* The kernel wants this before an unprivileged gid map: dropping a group must not widen what a user may read. */
        if (!put_of(out->pid, "setgroups", "deny", 4))
            return failed(out->error, "write setgroups", NULL);
        uids_size = snprintf(uids, sizeof uids, "0 %u 1\n", setup->uid);
        gids_size = snprintf(gids, sizeof gids, "0 %u 1\n", setup->gid);
    }
    if (!put_of(out->pid, "uid_map", uids, (size_t)uids_size))
        return failed(out->error, "write uid_map", uids);
    if (!put_of(out->pid, "gid_map", gids, (size_t)gids_size))
        return failed(out->error, "write gid_map", gids);
    return true;
}

static bool group_add(const struct text *path, struct launch_result *out)
{
    if (mkdir(path->at, 0755) < 0)
        return failed(out->error, "make cgroup", path->at);
    char *more = realloc(out->groups, out->groups_size + path->size + 1);
    if (!more) {
        rmdir(path->at);
        errno = ENOMEM;
        return failed(out->error, "make cgroup", path->at);
    }
    memcpy(more + out->groups_size, path->at, path->size + 1);
    out->groups = more;
    out->groups_size += path->size + 1;
    return true;
}

/* Carries the plan out in its order. A value is written into a group's file; an empty one stands for the child. */
static bool make_groups(const struct launch_request *request, pid_t pid, struct launch_result *out)
{
    const char *at = request->fields, *end = at + request->fields_size;
    struct item item;
    char own[16];
    int own_size = snprintf(own, sizeof own, "%d", (int)pid);

    while (item_next(&at, end, &item) > 0) {
        if (item.tag == LAUNCH_GROUP && !group_add(&item.value, out))
            return false;
        if (item.tag != LAUNCH_GROUP_WRITE)
            continue;
        const char *value = item_second(&item);
        bool child = *value == '\0';
        if (!put(item.value.at, child ? own : value, child ? (size_t)own_size : strlen(value)))
            return failed(out->error, "write cgroup", item.value.at);
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
static bool open_trees(const struct launch_request *request, int userns, int *trees, size_t *count,
                       struct launch_result *out)
{
    const char *at = request->fields, *end = at + request->fields_size;
    struct item item;

    while (item_next(&at, end, &item) > 0) {
        if (item.tag != LAUNCH_LAYER && item.tag != LAUNCH_VOLUME)
            continue;
        const char *source = item_second(&item);
        int tree = mounts_open_tree(source, userns);
        if (tree < 0)
            return failed(out->error, item.tag == LAUNCH_LAYER ? "open layer" : "open volume", source);
        trees[(*count)++] = tree;
    }
    return true;
}

static bool hand_over(int sync, const void *words, size_t size, const int *fds, size_t count)
{
    char control[CMSG_SPACE((LAUNCH_TREES_MAX + 2) * sizeof(int))];
    struct iovec part = {(void *)(uintptr_t)words, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

    if (count) {
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(head), fds, count * sizeof(int));
    }
    return sendmsg(sync, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

static bool open_userns(struct blank *blank)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/user", (int)blank->pid);
    blank->userns = open(path, O_RDONLY | O_CLOEXEC);
    return blank->userns >= 0 || failed(blank->error, "open user namespace", NULL);
}

void blank_make(const struct launch_setup *setup, bool host_network, uint32_t id_base, int self, struct blank *out)
{
    int sync[2];

    *out = (struct blank){.pid = -1, .sync = -1, .userns = -1, .id_base = id_base, .host_network = host_network};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sync) < 0) {
        failed(out->error, "socketpair", NULL);
        return;
    }
    /* The other namespaces are made by the child itself: they cost more, and so they are made in parallel. */
    struct k_clone_args clone = {.flags = CLONE_NEWUSER | CLONE_NEWPID, .exit_signal = SIGCHLD};
    pid_t pid = (pid_t)syscall(SYS_clone3, &clone, sizeof clone);
    if (pid == 0)
        launch_child_main(setup, host_network, sync[1], self);
    int why = errno;
    close(sync[1]);
    errno = why;
    out->pid = pid;
    out->sync = sync[0];
    if (pid < 0)
        failed(out->error, "clone", errno == EPERM || errno == ENOSPC ? "with a new user namespace" : NULL);
    else if (write_ids(setup, out) && (!setup->full_ids || open_userns(out)) && !hand_over(out->sync, "i", 1, NULL, 0))
        failed(out->error, "release", NULL);
}

void blank_close(struct blank *blank)
{
    if (blank->sync >= 0)
        close(blank->sync);
    if (blank->userns >= 0)
        close(blank->userns);
    blank->sync = blank->userns = -1;
}

void launch_start(const struct launch_setup *setup, const struct launch_request *request, struct text message,
                  struct blank *blank, const int fds[2], struct launch_result *out)
{
    int handed[LAUNCH_TREES_MAX + 2] = {fds[0], fds[1]};
    size_t count = 0;
    struct release release = {(uint32_t)blank->pid, blank->id_base};

    *out = (struct launch_result){.groups = NULL};
    if (setup->full_ids)
        open_trees(request, blank->userns, handed + 2, &count, out);
    /* It goes on as soon as it has the request: the control groups are made in parallel. */
    if (!out->error[0] && !hand_over(blank->sync, message.at, message.size, handed, count + 2))
        failed(out->error, "release", NULL);
    while (count)
        close(handed[2 + --count]);
    if (!out->error[0] && make_groups(request, blank->pid, out) &&
        !hand_over(blank->sync, &release, sizeof release, NULL, 0))
        failed(out->error, "release", NULL);
}
