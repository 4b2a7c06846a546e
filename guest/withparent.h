/* A tool that this host has, and all that it starts: nothing of them outlives who asked for it. */
#ifndef PROOFBOX_WITHPARENT_H
#define PROOFBOX_WITHPARENT_H

/* with-parent PID PROGRAM ARGUMENTS...: runs that program and ends as it does (128 and the signal that ended it). What it has left
 * running by then is ended first; so is all of it when our parent, the process PID, ends, or SIGTERM, SIGINT, SIGQUIT or SIGHUP comes. For root it has
 * mounts of its own: what is mounted by a program that is killed is gone with it. */
int withparent_main(int argc, char **argv);

#endif
