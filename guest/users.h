/* Who a command runs as: /etc/passwd and /etc/group of the sandbox, read with a parser of our own. */
#ifndef PROOFBOX_USERS_H
#define PROOFBOX_USERS_H

#include "frame.h"

#include <sys/types.h>

enum { MAX_GROUPS = 64 };

struct user {
    uid_t uid;
    gid_t gid;
    gid_t groups[MAX_GROUPS];
    u32 group_count;
    char name[256]; /* empty without an entry */
    char home[1024]; /* "/" without one */
};

/* Looks up "name", "uid", "name:group", "uid:gid"; NULL is the calling process's own user. 0, or an errno (ENOENT: unknown).
 * A number is known without an entry, and so is "root".
 * The files may be hostile: anything but a regular file is ignored, and at most 1 MiB of it is read. */
int user_find(const char *spec, struct user *user);

/* Looks it up ahead: the next user_find of the same text in this process takes what was found, unless a file has changed since. */
void user_remember(const char *spec);

/* Becomes that user for good. 0, or an errno. What a user namespace of one id denies is ignored where nothing had to change. */
int user_become(const struct user *user);

#endif
