#include "tree.h"

#include "entry.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int proc_fd = -1;

void tree_open_proc(void) { proc_fd = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC); }
int tree_proc(void) { return proc_fd; }

u64 now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (u64)now.tv_sec * 1000000 + (u64)now.tv_nsec / 1000;
}

/* One bit for each pid up to the kernel's largest. Pages that no pid falls into cost nothing; but in gVisor, where two forked
 * processes share what lies around the byte that one of them writes, all of it is copied, so that nothing large is there before it
 * is needed. */
enum { PID_LIMIT = 1 << 22 };
static struct marks {
    u8 seen[PID_LIMIT / 8], stopped[PID_LIMIT / 8], chased[PID_LIMIT / 8];
} *marks;

static int mark(u8 *bits, pid_t pid)
{
    if (pid <= 0 || pid >= PID_LIMIT)
        return 0;
    u8 bit = (u8)(1 << (pid & 7));
    int fresh = !(bits[pid >> 3] & bit);
    bits[pid >> 3] |= bit;
    return fresh;
}

static void unmark(u8 *bits, const struct pids *p)
{
    for (u32 i = 0; i < p->count; i++)
        bits[p->list[i] >> 3] &= (u8)~(1 << (p->list[i] & 7));
}

static int add(struct pids *p, pid_t pid)
{
    if (p->count == p->size) {
        u32 size = p->size ? 2 * p->size : 64;
        pid_t *list = realloc(p->list, size * sizeof *list);
        if (!list)
            return -1;
        p->list = list;
        p->size = size;
    }
    p->list[p->count++] = pid;
    return 0;
}

static pid_t number(const char *text)
{
    pid_t n = 0;
    for (; *text >= '0' && *text <= '9'; text++)
        n = n * 10 + (*text - '0');
    return *text ? -1 : n;
}

static int stop_signal; /* while it is set, what is found gets it at once */

struct facts {
    char state;
    pid_t parent, group;
};

/* From the stat line of a process. The name in it may hold anything: what counts is behind the last ")". */
static int read_facts(pid_t pid, struct facts *facts)
{
    char path[40] = "", line[512];
    text_add_number(path, sizeof path, (u64)pid);
    text_add(path, sizeof path, "/stat");
    int fd = openat(proc_fd, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t n = read(fd, line, sizeof line - 1);
    close(fd);
    if (n <= 0)
        return -1;
    line[n] = 0;
    char *at = strrchr(line, ')');
    if (!at || !at[1] || !at[2] || !at[3])
        return -1;
    facts->state = at[2];
    facts->parent = (pid_t)strtol(at + 4, &at, 10);
    facts->group = (pid_t)strtol(at, NULL, 10);
    return 0;
}

/* Stops a process the moment it is found, and its whole process group with it: that is one step of the kernel, which no fork
 * in the group outruns. Every group below us is of the tree alone, but our own. */
static void stop(pid_t pid)
{
    struct facts facts;
    if (!mark(marks->stopped, pid))
        return;
    if (!read_facts(pid, &facts) && facts.group > 1 && facts.group != getpgrp())
        kill(-facts.group, stop_signal);
    kill(pid, stop_signal);
}

/* The pids in one "children" file. */
static int read_children(const char *path, struct pids *found, int (*skip)(pid_t))
{
    int fd = openat(proc_fd, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    char text[4096];
    ssize_t n;
    pid_t pid = 0;
    while ((n = read(fd, text, sizeof text)) > 0)
        for (ssize_t i = 0; i < n; i++) {
            if (text[i] >= '0' && text[i] <= '9') {
                pid = pid * 10 + (text[i] - '0');
                continue;
            }
            if (pid && !(skip && skip(pid)) && mark(marks->seen, pid)) {
                if (stop_signal)
                    stop(pid);
                add(found, pid);
            }
            pid = 0;
        }
    close(fd);
    return 0;
}

static int children_of(pid_t pid, struct pids *found, int (*skip)(pid_t))
{
    char path[80] = "";
    text_add_number(path, sizeof path, (u64)pid);
    text_add(path, sizeof path, "/task");
    int fd = openat(proc_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT || errno == ESRCH ? 0 : -1;
    _Alignas(8) char raw[2048];
    long n;
    int told = 0;
    while ((n = syscall(SYS_getdents64, fd, raw, sizeof raw)) > 0)
        for (long at = 0; at < n;) {
            struct entry *entry = (struct entry *)(raw + at);
            at += entry->length;
            if (number(entry->name) <= 0)
                continue;
            char file[80] = "";
            text_add(file, sizeof file, path);
            text_add(file, sizeof file, "/");
            text_add(file, sizeof file, entry->name);
            text_add(file, sizeof file, "/children");
            told |= read_children(file, found, skip) == 0;
        }
    close(fd);
    return told || pid != getpid() ? 0 : -1;
}

/* Without "children" files (a kernel without CONFIG_PROC_CHILDREN): all processes and their parents, until nothing is added. */
static int find_by_parent(struct pids *found, int (*skip)(pid_t))
{
    int fd = openat(proc_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    struct pids all = {0}, parents = {0};
    _Alignas(8) char raw[8192];
    long n;
    while ((n = syscall(SYS_getdents64, fd, raw, sizeof raw)) > 0)
        for (long at = 0; at < n;) {
            struct entry *entry = (struct entry *)(raw + at);
            at += entry->length;
            pid_t pid = number(entry->name);
            struct facts facts;
            if (pid > 0 && !read_facts(pid, &facts) && (add(&all, pid) || add(&parents, facts.parent)))
                break;
        }
    close(fd);
    pid_t self = getpid();
    for (u32 before = UINT32_MAX; before != found->count;) {
        before = found->count;
        for (u32 i = 0; i < parents.count && i < all.count; i++) {
            pid_t parent = parents.list[i];
            int ours = parent == self || (parent < PID_LIMIT && marks->seen[parent >> 3] & 1 << (parent & 7));
            if (ours && !(skip && skip(all.list[i])) && mark(marks->seen, all.list[i])) {
                if (stop_signal)
                    stop(all.list[i]);
                add(found, all.list[i]);
            }
        }
    }
    free(all.list);
    free(parents.list);
    return 0;
}

static int find(struct pids *found, int (*skip)(pid_t))
{
    if (!marks)
        marks = calloc(1, sizeof *marks);
    found->count = 0;
    if (proc_fd < 0 || !marks)
        return -1;
    int told = children_of(getpid(), found, skip);
    for (u32 i = 0; !told && i < found->count; i++)
        children_of(found->list[i], found, skip);
    if (told)
        told = find_by_parent(found, skip);
    unmark(marks->seen, found);
    return told;
}

int tree_find(struct pids *found, int (*skip)(pid_t))
{
    int told = find(found, skip);
    u32 living = 0;
    for (u32 i = 0; i < found->count; i++) {
        struct facts facts;
        if (!read_facts(found->list[i], &facts) && facts.state != 'Z' && facts.state != 'X')
            found->list[living++] = found->list[i];
    }
    found->count = living;
    return told;
}

/* Walks until a walk finds nothing new; what is found gets the signal at once. Returns how many were found. */
static u32 chase(int signal, int (*skip)(pid_t))
{
    static struct pids found;
    struct pids all = {0};
    stop_signal = signal;
    for (u32 before = UINT32_MAX, pass = 0; before != all.count && pass < 100; pass++) {
        before = all.count;
        find(&found, skip);
        for (u32 i = 0; i < found.count; i++)
            if (mark(marks->chased, found.list[i]))
                add(&all, found.list[i]);
    }
    stop_signal = 0;
    if (marks) {
        unmark(marks->chased, &all);
        unmark(marks->stopped, &all);
    }
    free(all.list);
    return all.count;
}

u32 tree_kill(int (*skip)(pid_t))
{
    int usual = getpriority(PRIO_PROCESS, 0);
    setpriority(PRIO_PROCESS, 0, -20); /* where we may: the chase is against programs that fork as fast as they can */
    chase(SIGSTOP, skip);
    u32 count = chase(SIGKILL, skip);
    setpriority(PRIO_PROCESS, 0, usual);
    return count;
}

void tree_signal(int signal)
{
    struct pids found = {0};
    if (!tree_find(&found, NULL))
        for (u32 i = 0; i < found.count; i++)
            kill(found.list[i], signal);
    free(found.list);
}
