/* What copying and pruning a layer share: where they are in it, and an end with a reason. */
#ifndef PROOFBOX_LAYERWALK_H
#define PROOFBOX_LAYERWALK_H

#include <stdbool.h>
#include <stddef.h>

#define OPAQUE "user.overlay.opaque"

/* Whoever walks the copy by its names, and removes it, has to reach all of it: with his own directories before them. */
enum { PATH_MOST = 3500 };

struct walk {
    char path[PATH_MOST + 1]; /* of the entry at hand */
    size_t path_size;
};

extern struct walk walk;

/* Ends the program: what failed, the path, errno. */
_Noreturn void walk_fail(const char *step);
void walk_check(long result, const char *step);

/* The path gets one name more; what walk_leave takes to forget it. */
size_t walk_enter(const char *name);
void walk_leave(size_t before);

int walk_open(int at, const char *name);
bool walk_is_opaque(int directory);

/* IDS as in userns.h. With as many descriptors as we may have: three for each directory that we are in. */
void walk_as_root(const char *ids);

#endif
