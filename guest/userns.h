/* User namespaces in which a user without rights has more than one id. */
#ifndef PROOFBOX_USERNS_H
#define PROOFBOX_USERNS_H

#include <stdbool.h>

/* proofbox-guest userns: makes a user namespace, says so with one byte on standard output, and stays in it until standard
 * input ends. Meanwhile the client has its ids mapped and takes hold of it.
 * proofbox-guest userns FD PROGRAM ARG...: runs a program of the host as root of such a namespace; "one" instead of FD: of
 * a new one, in which our own id is the only one. */
int userns_main(int argc, char **argv);

/* Becomes root of such a namespace, before anything else is done. Our groups stay. 0, or -1 with errno. */
int userns_enter(int fd);

/* How a program that works for a client becomes root. IDS is "all" where it is the host's root, who may have all ids, and
 * stays that; "one" where one id is all there is: alone in a new namespace, where it stands for root's; or the descriptor
 * of a namespace as above: without our groups, which would go on to count inside. False with errno. */
bool userns_become_root(const char *ids);

#endif
