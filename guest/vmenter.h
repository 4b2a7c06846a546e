/* The face of the guest binary that confines a virtual machine monitor and runs it. */
#ifndef PROOFBOX_VMENTER_H
#define PROOFBOX_VMENTER_H

/*
 * proofbox-guest vm-enter OPTION... -- PROGRAM ARG...
 *
 *   channel FD             first: the guest's channel
 *   group DIR              a cgroup directory to run in; may come again
 *   uid ID                 PROGRAM runs as this user and group, with no other group and no capability
 *   userns FD              a user namespace that we become root of, where ID is one of the ids
 *   filter FD              of system calls: an array of struct sock_filter in a file, which PROGRAM may not leave
 *   stage DIR              a directory of the host to put the new root together on
 *   show SOURCE            a file or directory of the host that PROGRAM sees, read-only, at the same path
 *   at TARGET              before `show`: there instead
 *   device PATH            a device node that PROGRAM may use
 *
 * With neither uid nor userns PROGRAM is alone in a new user namespace, where the client's own id is the only one.
 * Descriptors that were inherited are PROGRAM's, by the same numbers. It sees nothing of the host but what is shown, its
 * own processes in /proc, and no network.
 *
 * Ends when PROGRAM ends, with its status, after every process is gone. SIGTERM ends it. Dies with its parent, and all of it
 * then. What fails is told as FATAL on the channel; when PROGRAM ends by itself, the last words of its standard output are.
 */
int vmenter_main(int count, char **words);

#endif
