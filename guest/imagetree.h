/* Shows directories side by side to a program that makes an image of them. */
#ifndef PROOFBOX_IMAGETREE_H
#define PROOFBOX_IMAGETREE_H

/* proofbox-guest image-tree STAGE IDS SOURCE... -- PROGRAM ARG...
 * In a mount namespace of its own shows each source, read-only, at STAGE/N (STAGE is an empty directory) and runs the program
 * there, as root, as IDS says (userns.h): so that the owners it sees are those that a sandbox sees. Nothing of it is seen
 * outside, and nothing is left. */
int imagetree_main(int argc, char **argv);

#endif
