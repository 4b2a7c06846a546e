/* Init of a virtual machine that holds one sandbox. */
#ifndef PROOFBOX_VMINIT_H
#define PROOFBOX_VMINIT_H

/* Runs as PID 1 of an initial RAM file system that was made for it (docs/microvm.md): loads the drivers, waits for the launch
 * messages on the control port, runs the launcher, and resets the machine when the sandbox has ended. */
_Noreturn void vminit_main(void);

#endif
