/* The kernel's floor: only the system calls that a sandbox of the container level cannot do without, in C, with nothing
 * around them. What Proofbox takes beyond this is Proofbox's own.
 *
 *   floor life COUNT WORKERS    make a sandbox, run /usr/bin/true in it, destroy it; COUNT times over WORKERS processes
 *   floor idle COUNT            make COUNT idle sandboxes, then end them; memory of each
 *   floor spawn COUNT           posix_spawn /usr/bin/true and wait, COUNT times
 *
 * A sandbox here: user, mount, pid, net, ipc, uts and cgroup namespaces with a 65,536-id map, a size-limited tmpfs,
 * overlays for / and /usr, /dev with its nodes, devpts, shm, proc, loopback up, pivot_root, no new privileges; its cgroups
 * (memory, pids, cpu, cpuacct where they are writable). No seccomp, no channel, no guest. Needs root.
 * One line of JSON on stdout. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *controllers[] = {"memory", "pids", "cpu", "cpuacct", 0};
static char root[64];

static void die(const char *what) {
    fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
    _exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static int put(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    int ok = write(fd, text, strlen(text)) < 0 ? -1 : 0;
    close(fd);
    return ok;
}

static void bind_node(const char *name) {
    char from[64], to[128];
    snprintf(from, sizeof from, "/dev/%s", name);
    snprintf(to, sizeof to, "/tmp/new/dev/%s", name);
    close(open(to, O_CREAT | O_CLOEXEC, 0666));
    if (mount(from, to, 0, MS_BIND, 0)) die(to);
}

static void enter(void) {
    char options[512];
    if (mount("", "/", 0, MS_REC | MS_PRIVATE, 0)) die("private");
    snprintf(options, sizeof options, "size=1g,mode=755");
    if (mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, options)) die("tmpfs");
    mkdir("/tmp/up", 0755), mkdir("/tmp/work", 0755), mkdir("/tmp/up2", 0755), mkdir("/tmp/work2", 0755), mkdir("/tmp/new", 0755);
    snprintf(options, sizeof options, "lowerdir=%s,upperdir=/tmp/up,workdir=/tmp/work,userxattr", root);
    if (mount("overlay", "/tmp/new", "overlay", 0, options)) die("overlay /");
    if (mount("overlay", "/tmp/new/usr", "overlay", 0, "lowerdir=/usr,upperdir=/tmp/up2,workdir=/tmp/work2,userxattr"))
        die("overlay /usr");
    if (mount("proc", "/tmp/new/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, 0)) die("proc");
    if (mount("tmpfs", "/tmp/new/dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=755")) die("dev");
    static const char *nodes[] = {"null", "zero", "full", "random", "urandom", "tty", 0};
    for (int i = 0; nodes[i]; i++) bind_node(nodes[i]);
    mkdir("/tmp/new/dev/pts", 0755), mkdir("/tmp/new/dev/shm", 01777);
    if (mount("devpts", "/tmp/new/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666")) die("devpts");
    if (mount("shm", "/tmp/new/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=64m")) die("shm");
    int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq lo = {.ifr_name = "lo"};
    ioctl(s, SIOCGIFFLAGS, &lo);
    lo.ifr_flags |= IFF_UP;
    if (ioctl(s, SIOCSIFFLAGS, &lo)) die("loopback");
    close(s);
    if (chdir("/tmp/new") || syscall(SYS_pivot_root, ".", ".")) die("pivot_root");
    if (umount2(".", MNT_DETACH)) die("umount");
    if (chdir("/")) die("chdir");
    sethostname("sandbox", 7);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

static pid_t spawn_true(void) {
    static char *argv[] = {"true", 0}, *envp[] = {"PATH=/usr/bin", 0};
    pid_t pid;
    if (posix_spawn(&pid, "/usr/bin/true", 0, 0, argv, envp)) die("posix_spawn");
    return pid;
}

static void cgroup_path(char *to, size_t size, const char *controller, unsigned id) {
    snprintf(to, size, "/sys/fs/cgroup/%s/floor-%u", controller, id);
}

static void cgroup_make(unsigned id, pid_t pid) {
    char path[160], file[200], text[32];
    snprintf(text, sizeof text, "%d", pid);
    for (int i = 0; controllers[i]; i++) {
        cgroup_path(path, sizeof path, controllers[i], id);
        if (mkdir(path, 0755)) continue;
        if (i == 0) snprintf(file, sizeof file, "%s/memory.limit_in_bytes", path), put(file, "1073741824");
        if (i == 1) snprintf(file, sizeof file, "%s/pids.max", path), put(file, "264");
        snprintf(file, sizeof file, "%s/cgroup.procs", path);
        put(file, text);
    }
}

static void cgroup_remove(unsigned id) {
    char path[160];
    for (int i = 0; controllers[i]; i++) {
        cgroup_path(path, sizeof path, controllers[i], id);
        for (int n = 0; rmdir(path) && errno == EBUSY && n < 1000; n++) usleep(100);
    }
}

/* A sandbox; run: it runs true and ends, else it waits for its end of the pipe to close. */
static pid_t make(unsigned id, int run, int *hold) {
    int go[2], ready[2];
    if (pipe2(go, O_CLOEXEC) || pipe2(ready, O_CLOEXEC)) die("pipe");
    struct clone_args args = {.flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS |
                                       CLONE_NEWCGROUP,
                              .exit_signal = SIGCHLD};
    pid_t pid = syscall(SYS_clone3, &args, sizeof args);
    if (pid < 0) die("clone3");
    if (!pid) {
        char byte;
        close(go[1]), close(ready[0]);
        if (read(go[0], &byte, 1) != 1) _exit(1);
        if (setresgid(0, 0, 0) || setresuid(0, 0, 0)) die("setuid");
        enter();
        if (run) {
            int status;
            waitpid(spawn_true(), &status, 0);
            _exit(WEXITSTATUS(status));
        }
        if (write(ready[1], "r", 1) != 1) _exit(1);
        while (read(go[0], &byte, 1) > 0) {}
        _exit(0);
    }
    close(go[0]), close(ready[1]);
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/uid_map", pid);
    if (put(path, "0 1073741824 65536")) die(path);
    snprintf(path, sizeof path, "/proc/%d/gid_map", pid);
    if (put(path, "0 1073741824 65536")) die(path);
    cgroup_make(id, pid);
    if (write(go[1], "g", 1) != 1) die("go");
    if (!run) {
        char byte;
        if (read(ready[0], &byte, 1) != 1) die("sandbox");
    }
    close(ready[0]);
    if (hold) *hold = go[1];
    else close(go[1]);
    return pid;
}

static int order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void lives(int count, int workers) {
    double *took = calloc(count, sizeof *took);
    double start = now();
    for (int w = 1; w < workers; w++) {
        if (fork()) continue;
        for (int i = 0; i < count / workers; i++) {
            unsigned id = getpid() * 100000u + i;
            int status;
            waitpid(make(id, 1, 0), &status, 0);
            cgroup_remove(id);
        }
        _exit(0);
    }
    int mine = count / workers;
    for (int i = 0; i < mine; i++) {
        unsigned id = getpid() * 100000u + i;
        double t = now();
        int status;
        waitpid(make(id, 1, 0), &status, 0);
        if (status) die("sandbox");
        cgroup_remove(id);
        took[i] = now() - t;
    }
    while (wait(0) > 0) {}
    double all = now() - start;
    qsort(took, mine, sizeof *took, order);
    printf("{\"median_ms\": %.3f, \"per_second\": %.1f, \"workers\": %d, \"count\": %d}\n", took[mine / 2],
           mine * workers / all * 1e3, workers, mine * workers);
}

static long available_kib(void) {
    char line[128];
    long kib = 0;
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %ld", &kib) == 1) break;
    if (f) fclose(f);
    return kib;
}

static void idle(int count) {
    int *hold = calloc(count, sizeof *hold);
    unsigned base = getpid() * 100000u;
    long before = available_kib();
    double t = now();
    for (int i = 0; i < count; i++) make(base + i, 0, &hold[i]);
    double made = now() - t;
    long each = (before - available_kib()) / count;
    t = now();
    for (int i = 0; i < count; i++) close(hold[i]);
    while (wait(0) > 0) {}
    for (int i = 0; i < count; i++) cgroup_remove(base + i);
    printf("{\"created_ms\": %.1f, \"destroyed_ms\": %.1f, \"each_kib\": %ld, \"count\": %d}\n", made, now() - t, each, count);
}

static void spawns(int count) {
    double *took = calloc(count, sizeof *took);
    for (int i = 0; i < count; i++) {
        double t = now();
        waitpid(spawn_true(), 0, 0);
        took[i] = now() - t;
    }
    qsort(took, count, sizeof *took, order);
    printf("{\"median_ms\": %.3f, \"count\": %d}\n", took[count / 2], count);
}

static void make_root(void) {
    static const char *dirs[] = {"usr", "proc", "dev", "tmp", "etc", 0};
    static const char *links[] = {"bin", "sbin", "lib", "lib64", 0};
    snprintf(root, sizeof root, "/run/floor-%d", getpid());
    if (mkdir(root, 0755)) die(root);
    char path[128], target[32];
    for (int i = 0; dirs[i]; i++) snprintf(path, sizeof path, "%s/%s", root, dirs[i]), mkdir(path, 0755);
    for (int i = 0; links[i]; i++) {
        snprintf(path, sizeof path, "%s/%s", root, links[i]);
        snprintf(target, sizeof target, "usr/%s", links[i]);
        if (symlink(target, path)) die(path);
    }
}

static void remove_root(void) {
    static const char *names[] = {"usr", "proc", "dev", "tmp", "etc", "bin", "sbin", "lib", "lib64", "", 0};
    char path[128];
    for (int i = 0; names[i]; i++) snprintf(path, sizeof path, "%s/%s", root, names[i]), remove(path);
}

int main(int argc, char **argv) {
    if (argc < 3) return fprintf(stderr, "usage: floor life COUNT WORKERS | idle COUNT | spawn COUNT\n"), 2;
    int count = atoi(argv[2]);
    if (!strcmp(argv[1], "spawn")) return spawns(count), 0;
    make_root();
    if (!strcmp(argv[1], "life")) lives(count, argc > 3 ? atoi(argv[3]) : 1);
    if (!strcmp(argv[1], "idle")) idle(count);
    remove_root();
    return 0;
}
