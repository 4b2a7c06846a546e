/* What the guest asks of a kernel that may not be Linux: gVisor's, for one. Both before guest_main. */
#ifndef PROOFBOX_KERNEL_H
#define PROOFBOX_KERNEL_H

/* Tries for real what the end of a command, and finding all that it left behind, rest on. What this kernel does not do, or NULL. */
const char *kernel_lacks(void);

/* So many processes and threads in the control group that gVisor gives the sandbox; root inside may undo it. 0, or -1 with
 * errno. */
int kernel_limit_processes(const char *count);

#endif
