#include "handover.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

union ancillary {
    struct cmsghdr head;
    char space[CMSG_SPACE(HANDOVER_MOST * sizeof(int))];
};

bool hand_over(int socket, const void *words, size_t size, const int *fds, size_t count, int flags)
{
    union ancillary room;
    struct iovec part = {(void *)(uintptr_t)words, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

    if (count) {
        errno = E2BIG;
        if (count > HANDOVER_MOST)
            return false;
        message.msg_control = &room;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        room.head = (struct cmsghdr){.cmsg_len = CMSG_LEN(count * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&room.head), fds, count * sizeof(int));
    }
    return sendmsg(socket, &message, MSG_NOSIGNAL | flags) >= 0;
}

ssize_t take_over(int socket, void *words, size_t size, int *fds, size_t *count, int flags)
{
    union ancillary room;
    struct iovec part = {words, size};
    /* To the byte: where there is room for padding the kernel puts one descriptor more. */
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &room,
                             .msg_controllen = CMSG_LEN(*count * sizeof(int))};

    *count = 0;
    ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | flags);
    if (got < 0)
        return -1;
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (head && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS) {
        *count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(fds, CMSG_DATA(head), *count * sizeof(int));
    }
    if (!(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
        return got;
    while (*count)
        close(fds[--*count]);
    errno = message.msg_flags & MSG_CTRUNC ? EMFILE : EMSGSIZE;
    return -1;
}
