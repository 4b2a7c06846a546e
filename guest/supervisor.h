/* One supervisor for each command: it starts the command, waits for its whole tree and ends it. */
#ifndef PROOFBOX_SUPERVISOR_H
#define PROOFBOX_SUPERVISOR_H

#include "message.h"

#include <sys/types.h>

/* What a supervisor (or the child that does a file operation) tells the guest: records of fixed size on a socket pair. */
enum { REPORT_STARTED = 1, REPORT_FAILED, REPORT_EXITED, REPORT_EMPTY, REPORT_COUNT, REPORT_GONE, REPORT_RESULT };

struct report {
    u32 type;
    i32 pid;             /* STARTED: at once, or where a quiet command has run for some milliseconds */
    char step[8];        /* FAILED */
    i32 err;             /* FAILED, RESULT */
    i32 status;          /* EXITED: as of wait(2) */
    u32 empty;           /* EXITED: nothing of the tree is left; nothing follows */
    u32 left;            /* COUNT */
    u32 gone;            /* GONE: every process was reaped; nothing follows if it is 1 */
    u64 elapsed_us;      /* EXITED */
    u64 user_us, system_us, max_rss; /* EXITED, GONE */
    u8 result[48];       /* RESULT */
    u32 result_length;
};

/* What the guest tells a supervisor. The end of the socket means KILL too: nobody is left to report to. */
enum { ORDER_KILL = 1, ORDER_SIGNAL, ORDER_COUNT };
enum { SCOPE_PROCESS, SCOPE_GROUP, SCOPE_TREE };

struct order {
    u32 type;
    i32 signal;
    u32 scope;
};

/* The descriptors that the child has; -1 where there is none. All close-on-exec and above 3. */
struct ends {
    int control, in, out, err, channel;
    u8 terminal; /* in, out and err are one terminal */
    u8 fresh;    /* made for this command or the first: the guest waits for nothing from it while a short one runs */
};

/* They run in a forked child of the guest and never return. */
_Noreturn void supervisor_main(struct run *run, struct ends *ends);
_Noreturn void file_main(struct run *run, struct ends *ends);

/* As supervisor_main, made ahead: the RUN comes over the control socket, whose end means that none will. */
_Noreturn void spare_main(struct ends *ends, const char *likely_user);

void send_report(int control, const struct report *report);
_Noreturn void send_failed(int control, const char *step, int err); /* and exits */

/* Closes every descriptor from 4 on but those in `ends`: those of other commands must not be held open here. */
void keep_only(const struct ends *ends);

/* Runs in the command's own process, until exec. Returns only on failure, with the step in *step. */
struct command {
    struct run *run;
    const struct ends *ends;
    const struct user *user;
    int as_user; /* become it; else it is our own already */
    char **argv;
    const char *failed_step;
    int err;
};
int command_main(void *command);

#endif
