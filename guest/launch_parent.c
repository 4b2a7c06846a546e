/* The launcher's half of a start: clone, ids, control groups, template layers, release. It never waits for the child. */
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

static bool failed(struct launch_result *out, const char *step, const char *what)
{
    snprintf(out->error, sizeof out->error, "%s%s%s: %s", step, what ? " " : "", what ? what : "", strerror(errno));
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

static bool write_ids(const struct launch_setup *setup, const struct launch_request *request, struct launch_result *out)
{
    char uids[64], gids[64];
    int uids_size, gids_size;

    if (setup->full_ids) {
        uids_size = snprintf(uids, sizeof uids, "0 %u 65536\n", request->id_base);
        gids_size = snprintf(gids, sizeof gids, "0 %u 65536\n", request->id_base);
    } else {
        /* The kernel wants this before an unprivileged gid map: dropping a group must not widen what a user may read. */
        if (!put_of(out->pid, "setgroups", "deny", 4))
            return failed(out, "write setgroups", NULL);
        uids_size = snprintf(uids, sizeof uids, "0 %u 1\n", setup->uid);
        gids_size = snprintf(gids, sizeof gids, "0 %u 1\n", setup->gid);
    }
    if (!put_of(out->pid, "uid_map", uids, (size_t)uids_size))
        return failed(out, "write uid_map", uids);
    if (!put_of(out->pid, "gid_map", gids, (size_t)gids_size))
        return failed(out, "write gid_map", gids);
    return true;
}

static bool group_add(const struct text *path, struct launch_result *out)
{
    if (mkdir(path->at, 0755) < 0)
        return failed(out, "make cgroup", path->at);
    char *more = realloc(out->groups, out->groups_size + path->size + 1);
    if (!more) {
        rmdir(path->at);
        errno = ENOMEM;
        return failed(out, "make cgroup", path->at);
    }
    memcpy(more + out->groups_size, path->at, path->size + 1);
    out->groups = more;
    out->groups_size += path->size + 1;
    return true;
}

/* Carries the plan out in its order. A value is written into a group's file; an empty one stands for the child. */
static bool make_groups(const struct launch_request *request, struct launch_result *out)
{
    const char *at = request->fields, *end = at + request->fields_size;
    struct item item;
    char pid[16];
    int pid_size = snprintf(pid, sizeof pid, "%d", (int)out->pid);

    while (item_next(&at, end, &item) > 0) {
        if (item.tag == LAUNCH_GROUP && !group_add(&item.value, out))
            return false;
        if (item.tag != LAUNCH_GROUP_WRITE)
            continue;
        const char *value = item_second(&item);
        bool child = *value == '\0';
        if (!put(item.value.at, child ? pid : value, child ? (size_t)pid_size : strlen(value)))
            return failed(out, "write cgroup", item.value.at);
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
static bool open_trees(const struct launch_setup *setup, const struct launch_request *request, int *trees,
                       size_t *count, struct launch_result *out)
{
    const char *at = request->fields, *end = at + request->fields_size;
    struct item item;
    char path[64];

    if (!setup->full_ids)
        return true;
    snprintf(path, sizeof path, "/proc/%d/ns/user", (int)out->pid);
    int userns = open(path, O_RDONLY | O_CLOEXEC);
    if (userns < 0)
        return failed(out, "open user namespace", NULL);
    while (!out->error[0] && item_next(&at, end, &item) > 0) {
        if (item.tag != LAUNCH_LAYER && item.tag != LAUNCH_VOLUME)
            continue;
        const char *source = item_second(&item);
        int tree = mounts_open_tree(source, userns);
        if (tree < 0)
            failed(out, item.tag == LAUNCH_LAYER ? "open layer" : "open volume", source);
        else
            trees[(*count)++] = tree;
    }
    close(userns);
    return !out->error[0];
}

static bool release(int sync, const int *trees, size_t count, struct launch_result *out)
{
    uint32_t pid = (uint32_t)out->pid;
    char control[CMSG_SPACE(LAUNCH_TREES_MAX * sizeof(int))] = {0};
    struct iovec part = {&pid, sizeof pid};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

    if (count) {
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(head), trees, count * sizeof(int));
    }
    if (sendmsg(sync, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        return failed(out, "release", NULL);
    return true;
}

void launch_start(const struct launch_setup *setup, const struct launch_request *request, int channel, int status,
                  int self, struct launch_result *out)
{
    int sync[2];
    int trees[LAUNCH_TREES_MAX];
    size_t count = 0;

    *out = (struct launch_result){.pid = -1};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sync) < 0) {
        failed(out, "socketpair", NULL);
        return;
    }
    /* The other namespaces are made by the child itself: they cost more, and so they are made in parallel. */
    struct k_clone_args clone = {.flags = CLONE_NEWUSER | CLONE_NEWPID, .exit_signal = SIGCHLD};
    pid_t pid = (pid_t)syscall(SYS_clone3, &clone, sizeof clone);
    if (pid == 0)
        launch_child_main(setup, request, (struct launch_child){channel, status, sync[1], self});
    close(sync[1]);
    out->pid = pid;
    if (pid < 0)
        failed(out, "clone", errno == EPERM || errno == ENOSPC ? "with a new user namespace" : NULL);
    else if (write_ids(setup, request, out) && make_groups(request, out) &&
             open_trees(setup, request, trees, &count, out))
        release(sync[0], trees, count, out);
    while (count)
        close(trees[--count]);
    close(sync[0]);
}
