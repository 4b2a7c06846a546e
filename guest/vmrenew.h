/* A sandbox of a machine that was copied while it ran becomes another one. */
#ifndef PROOFBOX_VMRENEW_H
#define PROOFBOX_VMRENEW_H

#include <stdbool.h>
#include <sys/types.h>

struct vm_identity {
    const char *hostname, *machine_id, *boot_id; /* NULL: as it is */
};

/* Shows it in the namespaces of the sandbox whose first process is `pid`; `owner` is its root outside. False with errno if
 * that fails: then the sandbox may be either. */
bool vmrenew(pid_t pid, uid_t owner, const struct vm_identity *identity);

#endif
