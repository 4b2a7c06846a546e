#include "supervisor.h"
#include "tree.h"
#include "users.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LONGEST_ARGUMENT = 100000, END_LIMIT_US = 4000000, SHORT_MS = 10 };

struct supervisor {
    int control, signals;
    pid_t pid; /* the command's process; 0 once it was reaped: its number may be somebody else's by then */
    pid_t group;
    i32 status;
    u64 started_us, elapsed_us;
    u8 exited, untold; /* untold: that it has started */
};

void send_report(int control, const struct report *report)
{
    while (send(control, report, sizeof *report, MSG_NOSIGNAL) < 0 && errno == EINTR)
        ;
}

void send_failed(int control, const char *step, int err)
{
    struct report r = {.type = REPORT_FAILED, .err = err};
    text_add(r.step, sizeof r.step, step);
    send_report(control, &r);
    _exit(0);
}

void keep_only(const struct ends *ends)
{
    int keep[] = {ends->control, ends->in, ends->out, ends->err, ends->channel, tree_proc()};
    unsigned next = 4;
    for (;;) {
        unsigned first = ~0U;
        for (size_t i = 0; i < sizeof keep / sizeof *keep; i++)
            if (keep[i] >= 0 && (unsigned)keep[i] >= next && (unsigned)keep[i] < first)
                first = (unsigned)keep[i];
        unsigned last = first == ~0U ? INT_MAX : first - 1; /* gVisor takes no higher number for a descriptor's */
        if (first > next && syscall(SYS_close_range, next, last, 0))
            for (unsigned fd = next; fd <= last && fd < 65536; fd++)
                close((int)fd);
        if (first == ~0U)
            return;
        next = first + 1;
    }
}

static char *join(const char *a, const char *b)
{
    size_t first = strlen(a), second = strlen(b);
    char *text = malloc(first + second + 1);
    if (text) {
        memcpy(text, a, first);
        memcpy(text + first, b, second + 1);
    }
    return text;
}

static int has_env(const struct run *run, const char *prefix)
{
    for (u32 i = 0; i < run->env_count; i++)
        if (strncmp(run->env[i], prefix, strlen(prefix)) == 0)
            return 1;
    return 0;
}

static void add_env(struct run *run, const char *prefix, const char *value)
{
    if (!*value || has_env(run, prefix))
        return;
    char *text = join(prefix, value);
    if (text)
        run->env[run->env_count++] = text;
}

/* Long shell text goes through a sealed memory file: the kernel takes at most 131,071 bytes in one argument. */
static int script_file(const struct run *run, char *path, size_t size)
{
    int fd = memfd_create("shell text", MFD_ALLOW_SEALING);
    size_t done = 0;
    while (fd >= 0 && done < run->text_length) {
        ssize_t n = write(fd, run->args[0] + done, run->text_length - done);
        if (n <= 0)
            return -1;
        done += (size_t)n;
    }
    if (fd < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        return -1;
    /* A high number, which scripts do not use for their own redirections. */
    int high = fcntl(fd, F_DUPFD, 60);
    close(fd);
    if (high < 0)
        return -1;
    text_add(path, size, "/proc/self/fd/");
    text_add_number(path, size, (u64)high);
    return high;
}

static void report_usage(struct report *r)
{
    struct rusage usage;
    if (getrusage(RUSAGE_CHILDREN, &usage))
        return;
    r->user_us = (u64)usage.ru_utime.tv_sec * 1000000 + (u64)usage.ru_utime.tv_usec;
    r->system_us = (u64)usage.ru_stime.tv_sec * 1000000 + (u64)usage.ru_stime.tv_usec;
    r->max_rss = (u64)usage.ru_maxrss * 1024;
}

static void close_ends(struct ends *ends)
{
    int *all[] = {&ends->in, &ends->out, &ends->err, &ends->channel};
    for (size_t i = 0; i < 4; i++) {
        int fd = *all[i];
        for (size_t j = i; fd >= 0 && j < 4; j++)
            if (*all[j] == fd)
                *all[j] = -1;
        if (fd >= 0)
            close(fd);
    }
}

static void tell_start(struct supervisor *s)
{
    struct report r = {.type = REPORT_STARTED, .pid = s->group};
    send_report(s->control, &r);
    s->untold = 0;
}

static _Alignas(16) u8 command_stack[192 * 1024];

/* Starts the command. The child shares our memory until its exec, and we sleep so long: no copy of page tables is made. */
static void start(struct supervisor *s, struct run *run, struct ends *ends)
{
    static struct user user;
    static char script[40];
    char *shell_argv[4] = {run->shell ? run->shell : "/bin/sh"};
    struct command c = {.run = run, .ends = ends, .user = &user, .as_user = run->user != NULL, .argv = run->args};
    /* The user's entry is read only where something of it is needed. */
    int known = !run->user && run->cwd && has_env(run, "HOME=") && has_env(run, "USER=") && has_env(run, "LOGNAME=");
    int err = known ? 0 : user_find(run->user, &user);
    if (err)
        send_failed(s->control, "user", err);
    add_env(run, "HOME=", user.home);
    add_env(run, "USER=", user.name);
    add_env(run, "LOGNAME=", user.name);
    int high = -1;
    if (run->kind == KIND_SHELL) {
        c.argv = shell_argv;
        if (run->text_length > LONGEST_ARGUMENT) {
            if ((high = script_file(run, script, sizeof script)) < 0)
                send_failed(s->control, "memory", errno);
            shell_argv[1] = script;
        } else {
            shell_argv[1] = "-c";
            shell_argv[2] = run->args[0];
        }
    }
    s->started_us = now_us();
    s->pid = clone(command_main, command_stack + sizeof command_stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &c);
    if (s->pid < 0)
        send_failed(s->control, "fork", errno);
    if (c.failed_step) {
        waitpid(s->pid, NULL, 0);
        send_failed(s->control, c.failed_step, c.err);
    }
    s->group = s->pid;
    if (high >= 0)
        close(high);
    close_ends(ends);
    s->untold = run->quiet && ends->fresh;
    if (!s->untold)
        tell_start(s);
}

/* Reaps all that has ended. Returns 1 if nothing is left below us. */
static int reap(struct supervisor *s)
{
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG | __WALL);
        if (pid == 0)
            return 0;
        if (pid < 0)
            return errno == ECHILD;
        if (pid == s->pid) {
            s->pid = 0;
            s->status = status;
            s->exited = 1;
            s->elapsed_us = now_us() - s->started_us;
        }
    }
}

static void fill(const struct supervisor *s, struct report *r)
{
    r->status = s->status;
    r->elapsed_us = s->exited ? s->elapsed_us : now_us() - s->started_us;
    report_usage(r);
}

/* Ends the whole tree; returns when every process of it is reaped, or after so long with what there is. */
static void end_tree(struct supervisor *s, u64 limit_us)
{
    u64 until = now_us() + limit_us;
    struct report r = {.type = REPORT_GONE};
    while (!(r.gone = (u32)reap(s)) && now_us() < until) {
        if (!tree_kill(NULL) && s->pid)
            kill(s->pid, SIGKILL);
        if (tree_proc() < 0 && s->group > 0)
            kill(-s->group, SIGKILL);
        if ((r.gone = (u32)reap(s)))
            break;
        struct pollfd wait = {.fd = s->signals, .events = POLLIN};
        poll(&wait, 1, 5);
        struct signalfd_siginfo info;
        (void)!read(s->signals, &info, sizeof info);
    }
    fill(s, &r);
    send_report(s->control, &r);
    if (r.gone)
        _exit(0);
}

static void send_count(struct supervisor *s)
{
    struct pids found = {0};
    struct report r = {.type = REPORT_COUNT, .left = 0xffffffff};
    /* The last bytes of a pipe come a moment before the death of who wrote them: that one is not "left". */
    struct pollfd wait = {.fd = s->signals, .events = POLLIN};
    int empty = reap(s);
    if (!empty && poll(&wait, 1, 2) > 0)
        empty = reap(s);
    if (empty)
        r.left = 0;
    else if (!tree_find(&found, NULL))
        r.left = found.count;
    free(found.list);
    send_report(s->control, &r);
}

static void obey(struct supervisor *s)
{
    struct order order;
    ssize_t n = recv(s->control, &order, sizeof order, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n != sizeof order) /* the guest is gone: nobody is left to give up for */
        for (;;)
            end_tree(s, END_LIMIT_US);
    if (order.type == ORDER_KILL)
        end_tree(s, END_LIMIT_US);
    else if (order.type == ORDER_COUNT)
        send_count(s);
    else if (order.scope == SCOPE_TREE)
        tree_signal(order.signal);
    else if (order.scope == SCOPE_GROUP && s->group > 0)
        kill(-s->group, order.signal);
    else if (order.scope == SCOPE_PROCESS && s->pid > 0)
        kill(s->pid, order.signal);
}

/* The guest's tells of the guest's signals in gVisor, whoever reads it. */
static int own_signals(void)
{
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    return signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
}

static _Noreturn void supervise(struct run *run, struct ends *ends)
{
    struct supervisor s = {.control = ends->control, .signals = own_signals()};
    if (s.signals < 0)
        send_failed(s.control, "signalfd", errno);
    start(&s, run, ends);
    for (u8 told = 0;;) {
        int empty = reap(&s);
        if (s.exited && !told) {
            struct report r = {.type = REPORT_EXITED, .empty = (u32)empty};
            fill(&s, &r);
            send_report(s.control, &r);
            told = 1;
        } else if (empty) {
            struct report r = {.type = REPORT_EMPTY};
            send_report(s.control, &r);
        }
        if (empty)
            _exit(0);
        struct pollfd wait[2] = {{.fd = s.signals, .events = POLLIN}, {.fd = s.control, .events = POLLIN}};
        int ready = poll(wait, 2, s.untold ? SHORT_MS : -1);
        if (ready < 0 && errno != EINTR)
            _exit(1);
        if (s.untold && (!ready || wait[1].revents))
            tell_start(&s);
        struct signalfd_siginfo info;
        if (wait[0].revents)
            (void)!read(s.signals, &info, sizeof info);
        if (wait[1].revents)
            obey(&s);
    }
}

_Noreturn void supervisor_main(struct run *run, struct ends *ends)
{
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    keep_only(ends);
    supervise(run, ends);
}

_Noreturn void spare_main(struct ends *ends, const char *likely_user)
{
    struct run run;
    ssize_t n;
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    keep_only(ends);
    user_remember(likely_user);
    memset(command_stack + sizeof command_stack - 8192, 0, 8192); /* what the start would fault in */
    u8 *message = malloc(MAX_PAYLOAD + 1);
    if (!message)
        _exit(1);
    while ((n = recv(ends->control, message, MAX_PAYLOAD, 0)) < 0 && errno == EINTR)
        ;
    /* The guest has parsed the same bytes: what fails here is memory. */
    if (n <= 0 || run_parse(&run, message, (size_t)n))
        _exit(n != 0);
    supervise(&run, ends);
}
