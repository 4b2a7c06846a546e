/* User namespaces in which a user without rights has more than one id. */
#ifndef PROOFBOX_USERNS_H
#define PROOFBOX_USERNS_H

/* proofbox-guest userns: makes a user namespace, says so with one byte on standard output, and stays in it until standard
 * input ends. Meanwhile the client has its ids mapped and takes hold of it.
 * proofbox-guest userns FD PROGRAM ARG...: runs a program of the host as root of such a namespace. */
int userns_main(int argc, char **argv);

/* Becomes root of such a namespace, before anything else is done. 0, or -1 with errno. */
int userns_enter(int fd);
/* Alone in a new one, where our one id stands for root's. 0, or -1 with errno. */
int userns_alone(void);

#endif
