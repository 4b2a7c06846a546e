/* Joining control groups. */
#ifndef PROOFBOX_GROUP_H
#define PROOFBOX_GROUP_H

#include <stddef.h>

/* The length of its directory's name. */
size_t parent_of(const char *path);

/* For that cgroup.procs of a group, the file by which who writes "0" into it moves there: its file for single threads where
 * there is one, at version 1. Who is its only thread, and moves itself so, takes no lock that holds up every fork and exit of
 * the machine for a grace period, and waits for none. -1 with errno. */
int group_open(const char *procs);

#endif
