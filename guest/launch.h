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
#define LAUNCH_TREES_MAX 180 /* layers and volumes of one sandbox; SCM_RIGHTS carries at most 253 descriptors */
#define FROZEN_MAX 64 /* layers of other sandboxes below one */
/* Channel, status, frozen layers, opened layers and volumes, the socket to who mounts overlays. */
#define HANDED_MAX (2 + FROZEN_MAX + LAUNCH_TREES_MAX + 1)
#define GROUPS_MAX 16 /* control groups of one sandbox */

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
    bool full_ids; /* a range of 65,536 of the host's ids for each sandbox */
    bool nested_ids; /* those of the launcher's own user namespace for all; with neither one id, the client's */
    struct text uid_map, gid_map; /* with nested ids */
    bool root_overlays; /* with full ids: the host's root mounts overlays, see launch_overlay.c */
    bool keyring; /* not of the message: the launcher has an empty session keyring of its own */
    uint32_t id_first, id_last; /* with full ids: where a range may begin; with nested ones: who may own a sandbox */
    const char *id_locks; /* with full ids, or NULL: a file with a byte for each range, locked by who has it */
    const void *filter;
    size_t filter_size;
    const char *fields; /* masked, read-only and leftover paths are read from here when needed */
    size_t fields_size;
};

/* One sandbox. Points into the received message. */
struct launch_request {
    const char *id, *hostname;
    const char *machine_id, *boot_id; /* NULL: the host's boot id and the template's machine id are seen */
    bool host_network;
    uint64_t disk, inodes;
    uint32_t processes;
    size_t trees; /* how many layers and volumes it names */
    const char *fields;
    size_t fields_size;
};

/* Detached mounts: what lies below a sandbox. */
struct trees {
    int opened[LAUNCH_TREES_MAX]; /* the request's layers and volumes, in its order */
    int frozen[FROZEN_MAX];
    size_t frozen_count;
    int mounter; /* the socket to who mounts overlays, or -1 */
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
    SETUP_ID_FIRST,
    SETUP_ID_LAST,
    SETUP_GROUP_ROOT,
    SETUP_UID_MAP,
    SETUP_GID_MAP,
    SETUP_ROOT_OVERLAYS,
    SETUP_ID_LOCKS,
};
enum {
    LAUNCH_ID = 1,
    LAUNCH_HOSTNAME,
    LAUNCH_HOST_NETWORK,
    LAUNCH_DISK,
    LAUNCH_INODES,
    LAUNCH_PROCESSES,
    LAUNCH_LAYER,
    LAUNCH_VOLUME,
    LAUNCH_GROUP,
    LAUNCH_GROUP_WRITE,
    LAUNCH_FROZEN,
    LAUNCH_MACHINE_ID,
    LAUNCH_BOOT_ID,
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

/* The launcher's half of a sandbox. Until a request comes it is a blank: it lacks only what a request decides. */
struct blank {
    pid_t pid; /* -1: could not be cloned */
    int sync; /* our end of the socket to it */
    int userns;
    uint32_t id_base;
    char *groups; /* the cgroup directories that were made, NUL after each; malloc */
    size_t groups_size;
    char error[256]; /* empty if it went well */
};

/* What the launcher sends a blank: this, with control groups to join, when its ids are mapped; the request itself, with
 * channel, status and layers; this again, with control groups to join, when they have their limits. */
struct release {
    uint32_t pid, id_base;
};

/* launch_parent.c: the launcher's half of a start. It never waits for the child. `request` is NULL for a spare. */
void blank_make(const struct launch_setup *setup, const struct launch_request *request, uint32_t id_base, int self,
                struct blank *out);
/* Closes what the launcher holds of it. */
void blank_close(struct blank *blank);
/* Makes a sandbox of it. `message` is the request as it was received, `fds` the channel, the status socket and frozen
 * layers. */
void launch_start(const struct launch_setup *setup, const struct launch_request *request, struct text message,
                  struct blank *blank, const int *fds, size_t count);
/* Removes directories from the last to the first. What is left to do stays in the list. True when nothing is left. */
bool groups_remove(char *groups, size_t *size);

/* launch_child.c: the sandbox's half; becomes the guest. */
_Noreturn void launch_child_main(const struct launch_setup *setup, bool host_network, int sync, int launcher);
/* Closes everything but these two. */
long trim_descriptors(int one, int other);
/* Ends the sandbox that is being made, with the step's name. errno says why. */
_Noreturn void launch_fail(const char *step, const char *what);

static inline void check(long result, const char *step, const char *what)
{
    if (result < 0)
        launch_fail(step, what);
}

/* launch_overlay.c */
#define OVERLAY_OPTIONS_MAX (4096 + 256) /* the kernel takes one page */
/* A process of the launcher's that mounts overlays in that sandbox; it ends by itself. The socket to it, or -1 with errno. */
int overlays_by_root(const struct blank *blank);
/* The sandbox's half: has one mounted on that directory. */
void overlay_by_root(int mounter, int target, const char *options);
/* The same: waits until the one who mounts has ended. */
void overlays_done(int mounter);

/* mounts.c, mounts_dev.c */
/* The stage: the writable layer's file system with the sandbox's /dev and /proc in it. Becomes the current directory.
 * Returns a detached mount of the directory that will hold what the sandbox writes over its template, and nothing else. */
int mounts_stage(const struct launch_setup *setup);
/* The stage becomes the root: nothing of the host's tree is left in the mount namespace. */
void mounts_leave_host(void);
/* The layers and volumes of the request, where the launcher could not open them. Before the host's tree is left. */
void mounts_open_trees(const struct launch_request *request, struct trees *trees);
/* On the stage: the sandbox's root, which becomes the process's. */
void mounts_root(const struct launch_request *request, const struct trees *trees);
/* identity.c: shows what only this sandbox has. On the stage; `root` is the sandbox's, with its /proc. */
void mounts_identity(int root, const struct launch_request *request);
#define MACHINE_ID_PATH "/etc/machine-id"
#define BOOT_ID_PATH "/proc/sys/kernel/random/boot_id"
/* Its parts: a new file of one line; and a detached mount of it, which is used up, over a file of the sandbox's, if it has
 * one there: without it nobody would read it. False is errno. */
bool identity_put(const char *path, const char *text);
bool identity_show(int root, const char *path, int tree);
/* Bytes of the stage that this takes. */
size_t mounts_identity_size(const struct launch_request *request);
/* Enters a directory of `root` that must not be a link; makes it if it is missing. */
void mounts_enter(int root, const char *name);
void mounts_dev(const struct launch_setup *setup);
void mounts_proc(const struct launch_setup *setup);

#endif
