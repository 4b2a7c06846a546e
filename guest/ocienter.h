/* The face of the guest binary that prepares a place for an OCI runtime and runs it there. */
#ifndef PROOFBOX_OCIENTER_H
#define PROOFBOX_OCIENTER_H

/*
 * proofbox-guest oci-enter OPTION... -- PROGRAM ARG...
 *
 *   channel FD             first: the guest's channel; becomes descriptor 3
 *   at FD                  where PROGRAM finds it instead: 0, where PROGRAM hands no others on
 *   bundle DIR             the OCI bundle: rootfs/, layer/, lower/, volume/ are empty directories in it
 *   stage DIR              a directory of the host where PROGRAM sees the bundle
 *   ids BASE               0: those of a user namespace that we are root of; else ids from BASE on, 65,536 of them
 *   userns FD              that user namespace; without it, one in which our id is the only one
 *   size BYTES             of the writable layer
 *   inodes COUNT           of the writable layer; 0: as many as fit
 *   group DIR              a cgroup directory to run in; may come again
 *   target PATH            where the layers that follow appear; "/" first
 *   layer DIR              a read-only layer, the first one on top
 *   below I/K              the same, in the order of both: directory K of the frozen layer number I
 *   frozen FD:BASE         a frozen layer: a detached mount of what another sandbox wrote, whose owners count from BASE
 *   status FD              a SOCK_SEQPACKET socket that is sent one "L", with a detached mount of the writable layer: of
 *                          the directory that has 0 for what is written over the first target, 1 for the second, ...
 *   detaches yes           PROGRAM ends when the sandbox runs, and leaves to us what runs it
 *   directory PATH         has to be one in the root, and no link; made if it is missing, for everybody to write
 *   volume DIR             shown read-only at STAGE/volume/N, counted from 0
 *
 * Ends when PROGRAM ends, or what it left, with its status, after every process of the sandbox is
 * gone. SIGTERM ends the sandbox. Dies with its parent, and the sandbox with it. What fails before the guest runs is
 * told as FATAL on the channel.
 */
int ocienter_main(int count, char **words);

/*
 * proofbox-guest oci-beside FD -- PROGRAM ARG...
 *
 * Runs PROGRAM where the oci-enter whose directory in /proc that descriptor is runs its own: there the two find each other.
 * Ends as it does, and dies with the client and with the sandbox. What fails is told on standard error.
 */
int ocibeside_main(int count, char **words);

#endif
