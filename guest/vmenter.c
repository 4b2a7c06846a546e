/*
 * Confines a virtual machine monitor. Threat: who breaks out of the machine into the monitor is a process of this host; it
 * finds an empty root, no network, no other process, no rights, and an identity that owns nothing.
 */
#include "vmenter.h"

#include "enter.h"
#include "frame.h"
#include "launch_sys.h"
#include "mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

enum { SHOWN_MAX = 300, GROUPS_MAX = 32, DEVICES_MAX = 4, WORDS_MAX = 4000, TOLD_MAX = 320 /* what FATAL has room for */, LAST_CAP = 63, FILTER_MAX = 4096 };

struct shown {
    const char *target, *source;
    int tree; /* a detached mount of it */
    bool directory;
};

static struct {
    const char *stage;
    struct shown shown[SHOWN_MAX];
    const char *groups[GROUPS_MAX], *devices[DEVICES_MAX];
    int shown_count, group_count, device_count, filter;
    const char *userns; /* whose root we become where we are not the host's */
    uid_t uid;
    bool host_root;
    char **program;
} plan = {.filter = -1};

static void add(const char **list, int *count, int most, const char *value)
{
    errno = E2BIG;
    if (*count == most)
        fail("take option", value);
    list[(*count)++] = value;
}

static void read_option(const char *name, const char *value, const char **target)
{
    errno = E2BIG;
    if (!strcmp(name, "stage"))
        plan.stage = value;
    else if (!strcmp(name, "uid"))
        plan.uid = (uid_t)strtoul(value, NULL, 10);
    else if (!strcmp(name, "userns"))
        plan.userns = value;
    else if (!strcmp(name, "filter"))
        plan.filter = atoi(value);
    else if (!strcmp(name, "group"))
        add(plan.groups, &plan.group_count, GROUPS_MAX, value);
    else if (!strcmp(name, "device"))
        add(plan.devices, &plan.device_count, DEVICES_MAX, value);
    else if (!strcmp(name, "at"))
        *target = value;
    else if (!strcmp(name, "show") && plan.shown_count < SHOWN_MAX) {
        plan.shown[plan.shown_count++] = (struct shown){.target = *target ? *target : value, .source = value};
        *target = NULL;
    } else
        fail("take option", name);
}

static void read_plan(int count, char **words)
{
    const char *target = NULL;
    int at = 3;
    for (; at + 1 < count && strcmp(words[at], "--") != 0; at += 2)
        read_option(words[at], words[at + 1], &target);
    plan.program = words + at + 1;
    plan.host_root = plan.uid && !plan.userns;
    errno = EINVAL;
    if (at + 1 >= count || !plan.stage)
        fail("take options", "a stage and a program are needed");
}

/* The directories above a target, which is a path without links: nobody else writes in this file system. */
static void make_parents(const char *target)
{
    char path[4096];
    errno = ENAMETOOLONG;
    if (*target != '/' || strlen(target) >= sizeof path)
        fail("show at", target);
    for (const char *end = strchr(target + 1, '/'); end; end = strchr(end + 1, '/')) {
        memcpy(path, target + 1, (size_t)(end - target - 1));
        path[end - target - 1] = 0;
        if (mkdir(path, 0755) < 0 && errno != EEXIST)
            fail("make directory", path);
    }
}

static void make_file(const char *target)
{
    int fd = open(target + 1, O_CREAT | O_WRONLY | O_CLOEXEC, 0444);
    check(fd, "make file", target);
    close(fd);
}

static void attach(int tree, const char *target)
{
    check(syscall(SYS_move_mount, tree, "", AT_FDCWD, target + 1, K_MOVE_MOUNT_F_EMPTY_PATH), "show", target);
    close(tree);
}

/* The host's root makes a node that belongs to the monitor, since that one is in no group of the host. Others show theirs. */
static int open_device(const char *path)
{
    if (plan.host_root)
        return -1;
    int tree = mounts_clone(path);
    check(tree, "open device", path);
    return tree;
}

static void show_device(const char *path, int tree, const struct stat *node)
{
    make_parents(path);
    if (tree >= 0) {
        make_file(path);
        attach(tree, path);
        return;
    }
    check(mknod(path + 1, S_IFCHR | 0600, node->st_rdev), "make device", path);
    check(chown(path + 1, plan.uid, plan.uid), "own device", path);
}

/* Everything is opened before the stage is mounted, which could hide it. */
static void make_root(void)
{
    int devices[DEVICES_MAX];
    struct stat nodes[DEVICES_MAX], found;

    check(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "make mounts private", "");
    for (int i = 0; i < plan.shown_count; i++) {
        struct shown *each = &plan.shown[i];
        check(each->tree = mounts_open_tree(each->source, -1), "open", each->source);
        check(fstat(each->tree, &found), "look at", each->source);
        each->directory = S_ISDIR(found.st_mode);
    }
    for (int i = 0; i < plan.device_count; i++) {
        check(stat(plan.devices[i], &nodes[i]), "find device", plan.devices[i]);
        devices[i] = open_device(plan.devices[i]);
    }
    check(mount("tmpfs", plan.stage, "tmpfs", MS_NOSUID, "mode=0755,size=1m"), "mount tmpfs", plan.stage);
    check(chdir(plan.stage), "enter", plan.stage);
    for (int i = 0; i < plan.shown_count; i++) {
        struct shown *each = &plan.shown[i];
        make_parents(each->target);
        if (!each->directory)
            make_file(each->target);
        else if (mkdir(each->target + 1, 0755) < 0 && errno != EEXIST)
            fail("make directory", each->target);
        attach(each->tree, each->target);
    }
    for (int i = 0; i < plan.device_count; i++)
        show_device(plan.devices[i], devices[i], &nodes[i]);
    check(mkdir("proc", 0555), "make directory", "/proc");
}

/* In the PID namespace, whose processes are all that /proc shows. */
static void enter_root(void)
{
    const unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC;
    if (mount("proc", "proc", "proc", flags, "subset=pid") < 0)
        check(mount("proc", "proc", "proc", flags, NULL), "mount proc", "");
    check(syscall(SYS_pivot_root, ".", "."), "enter", "the new root");
    check(umount2(".", MNT_DETACH), "leave", "the host's root");
    check(chdir("/"), "enter", "/");
    check(mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID, NULL), "make read-only", "/");
}

/* A core dump would be a copy of the machine's memory, by default handed to a program of the host. */
static void drop_rights(void)
{
    struct rlimit none = {0, 0};
    check(setrlimit(RLIMIT_CORE, &none), "limit", "core dumps");
    for (int capability = 0; capability <= LAST_CAP; capability++)
        if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0 && errno != EINVAL)
            fail("drop", "capabilities");
    if (plan.uid) {
        check(setgroups(0, NULL), "drop", "groups");
        check(setresgid(plan.uid, plan.uid, plan.uid), "become", "the monitor's group");
        check(setresuid(plan.uid, plan.uid, plan.uid), "become", "the monitor's user");
    }
    struct k_cap_header head = {.version = K_CAP_VERSION_3};
    struct k_cap_data nothing[2] = {{0, 0, 0}, {0, 0, 0}};
    check(syscall(SYS_capset, &head, nothing), "drop", "capabilities");
    check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "set", "no new privileges");
}

/* Over the one that the monitor installs by itself, which lets it make namespaces, trace, and load programs into the kernel. */
static void filter_calls(void)
{
    static struct k_filter_instruction filter[FILTER_MAX];
    ssize_t size = pread(plan.filter, filter, sizeof filter, 0);
    check(size, "read", "filter of system calls");
    struct k_filter_program program = {(unsigned short)((size_t)size / sizeof *filter), filter};
    close(plan.filter);
    check(syscall(SYS_seccomp, K_SECCOMP_SET_MODE_FILTER, 0, &program), "set", "filter of system calls");
}

static _Noreturn void run_program(int complaint)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    drop_rights();
    if (dup2(complaint, 1) < 0 || dup2(complaint, 2) < 0)
        fail("duplicate", "descriptors");
    if (plan.filter >= 0)
        filter_calls();
    execv(plan.program[0], plan.program);
    fail("run", plan.program[0]);
}

static _Noreturn void init(int complaint)
{
    die_with_parent();
    enter_root();
    pid_t program = fork();
    check(program, "fork", "");
    if (program == 0)
        run_program(complaint);
    check(syscall(SYS_close_range, 0u, ~0u, 0u), "close", "descriptors"); /* their ends must be seen when the monitor's end */
    reap_until(program, false);
}

/* The last words, or where they tell of it the end of the guest's kernel, behind which comes a page of numbers. */
static const char *worth_telling(const char *last)
{
    const char *panic = strstr(last, "Kernel panic");
    size_t length = strlen(last);
    return panic ? panic : last + (length > TOLD_MAX ? length - TOLD_MAX : 0);
}

int vmenter_main(int count, char **words)
{
    char last[WORDS_MAX];
    char *const empty[] = {NULL};

    enter_channel = count > 2 && !strcmp(words[1], "channel") ? atoi(words[2]) : -1;
    if (enter_channel < 3)
        return 2;
    environ = (char **)empty;
    die_with_parent();
    read_plan(count, words);
    join_groups(plan.groups, plan.group_count);
    if (!plan.host_root)
        become_root(plan.userns ? plan.userns : "one");
    check(unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP), "make namespaces", "");
    die_with_parent(); /* again: becoming root in a namespace changed the credentials */
    make_root();
    int code = run_in_pid_namespace(init, last, sizeof last);
    if (code != 128 + SIGKILL && last[0])
        send_fatal(enter_channel, plan.program[0], worth_telling(last), 0);
    return code;
}
