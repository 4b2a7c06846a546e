/* Process trees, seen through /proc. */
#ifndef PROOFBOX_TREE_H
#define PROOFBOX_TREE_H

#include "frame.h"

#include <sys/types.h>

struct pids {
    pid_t *list;
    u32 count, size;
};

/* Opens /proc once, before anything hostile runs: no path is looked up in it later. */
void tree_open_proc(void);
int tree_proc(void); /* that descriptor, or -1 */

/* All living descendants of this process, parents before their children, without those for which `skip` is true and what is below them.
 * 0, or -1 when /proc does not tell. */
int tree_find(struct pids *found, int (*skip)(pid_t));

/* Stops everything below this process, walk after walk until one finds nothing new, so that no fork storm outruns the kill;
 * then kills it all in the same way. Reaps nothing, so the dead are still counted. Returns how many were found; to be
 * repeated until nothing is left to reap. */
u32 tree_kill(int (*skip)(pid_t));

void tree_signal(int signal);

u64 now_us(void); /* monotonic */

#endif
