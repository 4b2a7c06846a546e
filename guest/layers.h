/* What a sandbox wrote over its template, after and beside it: kept to be stacked below others, and copied. */
#ifndef PROOFBOX_LAYERS_H
#define PROOFBOX_LAYERS_H

/*
 * proofbox-guest keep-layers FD CLIENT IDS
 *
 * Holds frozen layers for one client process: each is attached in a mount namespace that nobody else sees, from where any
 * number of detached copies can be taken (the kernel lets a detached mount be copied nowhere but where it came from). FD is
 * a SOCK_SEQPACKET socket to CLIENT, a process id, which must be the parent. IDS as in userns.h. A request is a u8 and u32
 * numbers; the answer is the same, or 'E' and an errno.
 *
 *   'A' + descriptor    attach this detached mount, from now on read-only          'A' slot
 *   'M' KiB inodes      make an empty file system in memory of that size,          'M' slot + descriptor
 *                       attached as the others, to be filled through the descriptor
 *   'C' slot...         a detached copy of each, 200 at most                       'C' + descriptors
 *   'D' slot            let go of it                                               no answer
 *
 * Ends with the client or the socket, and all that it holds with it.
 */
int keeplayers_main(int count, char **words);

/*
 * proofbox-guest copy-layer SOURCE TARGET BASE IDS [compare | keep]
 *
 * Copies what the directory SOURCE holds into the directory TARGET (descriptors), as a layer in the form that
 * docs/templates.md names. What TARGET has already lies over it, and stays: several copies one after the other, the top one
 * first, make one layer of a stack. With a last word the content of each file is read back and compared with its source
 * (from the kernel's memory, mostly: the disk is another matter); with "keep" it fails where files have more than 16 GiB of holes. Owners are counted from BASE. Nobody may change either meanwhile. IDS as above: as root of
 * a user namespace no mode stops us. Dies with its parent.
 *
 * Exit code 0, and on standard output how many sockets and attributes were left out; else 1, and why on standard error.
 */
int copylayer_main(int count, char **words);

/*
 * proofbox-guest prune-layer TARGET IDS [NUMBER DIRECTORY]...
 *
 * After several copies: removes the whiteouts that hide nothing any more from the layer TARGET. Each DIRECTORY is one that
 * the part NUMBER will lie over, the top one first, those of a number together. Where a directory has nothing below that is
 * merged with it an overlay would show its whiteouts, as names that lead nowhere. Exit code and IDS as above.
 */
int prunelayer_main(int count, char **words);

#endif
