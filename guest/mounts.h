/* Detached mounts: hold what lies at a path, wherever that leads later, and can be attached elsewhere. */
#ifndef PROOFBOX_MOUNTS_H
#define PROOFBOX_MOUNTS_H

/* A copy of the mount at `path`, of that file or directory alone. -1 with errno. */
int mounts_clone(const char *path);

/* The same, read-only and without devices and set-user-id programs; `userns` is -1 or the namespace that its ids are mapped
 * through, where its file system can do that. Where we may not have the directory alone, with what is mounted below it. */
int mounts_open_tree(const char *path, int userns);

#endif
