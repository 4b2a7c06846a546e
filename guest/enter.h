/* What the programs that are run on the host for a sandbox have in common: each is a child of the client, prepares a place
 * out of namespaces, and runs there what isolates (an OCI runtime, a virtual machine monitor). */
#ifndef PROOFBOX_ENTER_H
#define PROOFBOX_ENTER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* The guest's channel, on which a failure is told. Set before anything else is called. */
extern int enter_channel;

/* Ends us: the step that failed, on what, and errno. */
_Noreturn void fail(const char *step, const char *what);
/* The same, if `result` is negative. */
void check(long result, const char *step, const char *what);

/* Ends us with our parent from here on. It forgets that when credentials change. */
void die_with_parent(void);
/* Of control groups we become a member, as the directories name them. */
void join_groups(const char *const *directories, int count);
/* As IDS says (userns.h). */
void become_root(const char *ids);

/* Does not return. */
typedef void enter_init(int complaint);
/* Runs `init` as the first process of a new PID namespace, whose standard output and error are to be `complaint`, and waits
 * until it and with it every process in there is gone; its exit code, or 128 and the signal. SIGTERM ends all of it. The
 * last words on `complaint` are in `text` then. */
int run_in_pid_namespace(enter_init *init, char *text, size_t size);
/* For `init`: waits until that child of ours has ended, and if it `detaches` and all went well, until what it left behind has or one
 * of that did not end well; exits as the last one did. When init ends, for whatever reason, the kernel ends all the others. */
_Noreturn void reap_until(pid_t program, bool detaches);

#endif
