/* The guest: PID 1 of every sandbox. See docs/protocol.md. */
#ifndef PROOFBOX_GUEST_H
#define PROOFBOX_GUEST_H

/* Serves the guest protocol on `channel_fd` until the stream ends. Relies on nothing but the descriptor: no argv, no environment, no
 * state of constructors; so a launcher may call it in a cloned child without exec. `unisolated`: not PID 1 of a namespace
 * of its own, so it ends the trees of its commands itself before it exits. Never returns. */
_Noreturn void guest_main(int channel_fd, int unisolated);

/* Every signal does what it does by default. Once, before guest_main, in it or in a process that it is cloned from. */
void signals_default(void);

/* No supervisor is made ahead while a command runs (spare.c). Once, before guest_main. */
void spare_none(void);

#endif
