/*
 * The launcher: the resident face of the guest binary that makes sandboxes. docs/launcher.md specifies its messages.
 *
 * It runs on the host, with the rights of the user that started it, and reads only from that user. It never runs a
 * program, never waits for a sandbox, and dies with the process that started it.
 */
#ifndef PROOFBOX_LAUNCH_H
#define PROOFBOX_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "launch_sys.h"

#define LAUNCH_VERSION 1
#define LAUNCH_MESSAGE_MAX 131072
#define LAUNCH_TREES_MAX 200 /* layers and volumes of one sandbox; SCM_RIGHTS carries at most 253 descriptors */

enum { MESSAGE_SETUP = 1, MESSAGE_LAUNCH = 2 };

struct text {
    const char *at; /* ends with NUL */
    size_t size;    /* NUL not counted */
};

/* What is the same for every sandbox. Points into memory that is never freed. */
struct launch_setup {
    uint32_t client; /* process id of the client */
    uint32_t uid, gid;
    uint64_t capabilities;
    bool full_ids; /* a range of 65,536 ids for each sandbox, not one id */
    const void *filter;
    size_t filter_size;
    const char *fields; /* masked, read-only and leftover paths are read from here when needed */
    size_t fields_size;
};

/* One sandbox. Points into the received message. */
struct launch_request {
    const char *id, *hostname;
    bool host_network;
    uint32_t id_base;
    uint64_t disk, inodes;
    uint32_t processes;
    const char *fields;
    size_t fields_size;
};

/* Tags of both messages: docs/launcher.md. */
enum {
    SETUP_VERSION = 1,
    SETUP_CLIENT,
    SETUP_UID,
    SETUP_GID,
    SETUP_FULL_IDS,
    SETUP_CAPABILITIES,
    SETUP_FILTER,
    SETUP_MASK,
    SETUP_READONLY,
    SETUP_LEFTOVER,
};
enum {
    LAUNCH_ID = 1,
    LAUNCH_HOSTNAME,
    LAUNCH_HOST_NETWORK,
    LAUNCH_ID_BASE,
    LAUNCH_DISK,
    LAUNCH_INODES,
    LAUNCH_PROCESSES,
    LAUNCH_LAYER,
    LAUNCH_VOLUME,
    LAUNCH_GROUP,
    LAUNCH_GROUP_WRITE,
};

/* launch_fields.c */
struct item {
    uint8_t tag;
    struct text value;
};
/* The next item at *at: 1, or 0 at the end, or -1 if the message is malformed. */
int item_next(const char **at, const char *end, struct item *out);
uint64_t item_number(const struct item *item);
/* The part of "first NUL second" after the NUL; NULL if there is none. */
const char *item_second(const struct item *item);
bool setup_read(const char *message, size_t size, struct launch_setup *out);
bool launch_read(const char *message, size_t size, struct launch_request *out);

/* launch.c */
int launcher_main(int control);

/* launch_parent.c: the launcher's half of one start. */
struct launch_result {
    pid_t pid; /* -1: nothing was made */
    char *groups; /* the cgroup directories that were made, NUL after each; malloc */
    size_t groups_size;
    char error[256]; /* empty if it went well */
};
void launch_start(const struct launch_setup *setup, const struct launch_request *request, int channel, int status,
                  int self, struct launch_result *out);
/* Removes directories from the last to the first. What is left to do stays in the list. True when nothing is left. */
bool groups_remove(char *groups, size_t *size);

/* launch_child.c: the sandbox's half; becomes the guest. */
struct launch_child {
    int channel, status, sync, launcher;
};
_Noreturn void launch_child_main(const struct launch_setup *setup, const struct launch_request *request,
                                 struct launch_child child);
/* Ends the sandbox that is being made, with the step's name. errno says why. */
_Noreturn void launch_fail(const char *step, const char *what);

/* mounts.c, mounts_dev.c */
/* A detached read-only copy of the mount at `path`; `userns` is -1 or the namespace that its ids are mapped
 * through, where its file system can do that. */
int mounts_open_tree(const char *path, int userns);
void mounts_root(const struct launch_setup *setup, const struct launch_request *request, int *trees, size_t count);
int mounts_target(int root, const char *path, bool directory);
void mounts_dev(const struct launch_setup *setup, int root, const char *stage);
void mounts_proc(const struct launch_setup *setup, int root, const char *stage);

#endif
