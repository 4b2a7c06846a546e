/* Descriptors on their way between two processes of ours, over a socket that keeps messages apart. */
#ifndef PROOFBOX_HANDOVER_H
#define PROOFBOX_HANDOVER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>

#define HANDOVER_MOST 253 /* descriptors that the kernel takes in one message */

/* Sends words, and descriptors with them if there are any. `flags` is MSG_DONTWAIT, or 0 to wait for room. False with
 * errno. */
bool hand_over(int socket, const void *words, size_t size, const int *fds, size_t count, int flags);

/* Takes the next message: as recvmsg(2) with these flags, how many bytes it has, 0 at the end of the connection, -1 with
 * errno. `count` is room for how many descriptors, and then how many came; they are close-on-exec. Of what does not fit
 * nothing is kept open: EMFILE if it is descriptors (where there is room, because we may have no more), EMSGSIZE if it is
 * words. */
ssize_t take_over(int socket, void *words, size_t size, int *fds, size_t *count, int flags);

#endif
