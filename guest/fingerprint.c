#include "fingerprint.h"

#include "entry.h"
#include "stream.h"
#include "tree.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

/* The options of a file system of the sandbox's own, without the ids outside, which differ from sandbox to sandbox. */
static void mount_options(struct lines *l, char *options)
{
    char *rest = options;
    for (char *option; (option = strsep(&rest, ","));)
        if (strncmp(option, "uid=", 4) != 0 && strncmp(option, "gid=", 4) != 0)
            line_text(l, option);
}

static int is_kernels(const char *kind)
{
    static const char *const kinds[] = {"overlay", "proc", "devpts", "devtmpfs", "mqueue", "cgroup", "cgroup2"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(kind, kinds[i]))
            return 1;
    return 0;
}

static void put_mounts(struct lines *l)
{
    struct reader r;
    char *line;
    if (!reader_open(&r, "self/mountinfo"))
        return;
    while ((line = reader_next(&r))) {
        char *word = next_word(&line);
        next_word(&line); /* numbers: its own, its parent's, its device's */
        next_word(&line);
        char *root = next_word(&line), *place = next_word(&line), *flags = next_word(&line);
        while (*(word = next_word(&line)) && strcmp(word, "-") != 0)
            ;
        char *kind = next_word(&line), *source = next_word(&line);
        line_begin(l, PART_MOUNTS);
        line_text(l, place);
        line_text(l, flags);
        line_text(l, kind);
        /* What the host mounted for itself may lie elsewhere tomorrow, or be mounted otherwise, with the same files in it. */
        if (is_kernels(kind) || !strcmp(source, "proofbox"))
            line_text(l, root);
        if (!strcmp(kind, "overlay") || !strcmp(kind, "tmpfs") || !strcmp(kind, "devpts"))
            mount_options(l, next_word(&line));
        line_end(l);
    }
}

/* Those with a name. Pairs and unnamed ones cannot be found by anybody, and the guest has some. */
static void put_unix_sockets(struct lines *l)
{
    struct reader r;
    char *line;
    if (!reader_open(&r, "self/net/unix"))
        return;
    while ((line = reader_next(&r))) {
        char *words[7];
        for (int i = 0; i < 7; i++)
            words[i] = next_word(&line);
        if (!*line || !strcmp(words[0], "Num"))
            continue;
        line_begin(l, PART_SOCKETS);
        line_number(l, "unix type ", strtoul(words[4], NULL, 16), 10);
        line_text(l, strcmp(words[3], "00010000") ? "bound" : "listens");
        line_text(l, line);
        line_end(l);
    }
}

/* How many there are of each kind in the network namespace; on a line of the kernel's other figures count for all of them. */
static void put_sockets(struct lines *l)
{
    static const char *const files[] = {"self/net/sockstat", "self/net/sockstat6"};
    int some = 1;
    for (size_t i = 0; i < 2 && some; i++) {
        some = 0;
        struct reader r;
        char *line;
        if (!reader_open(&r, files[i]))
            continue;
        while ((line = reader_next(&r))) {
            char *kind = next_word(&line);
            for (char *name; *(name = next_word(&line));) {
                char *count = next_word(&line);
                if (!strcmp(count, "0") || (strcmp(name, "used") && strcmp(name, "inuse") && strcmp(name, "tw")))
                    continue;
                some = 1;
                if (!strcmp(name, "used")) {
                    put_unix_sockets(l);
                    continue;
                }
                line_begin(l, PART_SOCKETS);
                line_text(l, kind);
                line_text(l, name);
                line_text(l, count);
                line_end(l);
            }
        }
    }
}

static void put_count(struct lines *l, u8 part, const char *name, u64 count)
{
    line_begin(l, part);
    line_text(l, name);
    line_number(l, "", count, 10);
    line_end(l);
}

static void take_queue(struct lines *l, const char *name)
{
    line_begin(l, PART_IPC);
    line_text(l, "message queue");
    line_text(l, name);
    line_end(l);
}

static void put_ipc(struct lines *l)
{
    struct shm_info shm;
    struct msginfo msg;
    struct seminfo sem;
    if (shmctl(0, SHM_INFO, (struct shmid_ds *)&shm) >= 0)
        put_count(l, PART_IPC, "System V shared memory segments", (u64)shm.used_ids);
    if (msgctl(0, MSG_INFO, (struct msqid_ds *)&msg) >= 0)
        put_count(l, PART_IPC, "System V message queues", (u64)msg.msgpool);
    if (semctl(0, 0, SEM_INFO, &sem) >= 0)
        put_count(l, PART_IPC, "System V semaphore sets", (u64)sem.semusz);
    struct stat queues; /* as large as there are queues in it */
    if (lstat("/dev/mqueue", &queues) || !S_ISDIR(queues.st_mode) || !queues.st_size)
        return;
    int fd = open("/dev/mqueue", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return;
    each_name(l, fd, take_queue);
    close(fd);
}

/* What the writable layer holds: a file that was made, changed or deleted while it is open shows here. */
static void put_space(struct lines *l)
{
    static const char *const places[] = {"/", "/dev", "/dev/shm"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        struct statfs found;
        if (statfs(places[i], &found))
            continue;
        line_begin(l, PART_FILES);
        line_text(l, "writable at");
        line_text(l, places[i]);
        line_number(l, "blocks ", found.f_blocks - found.f_bfree, 10);
        line_number(l, "inodes ", found.f_files - found.f_ffree, 10);
        line_end(l);
    }
}

/* Timers that can be seen: POSIX timers, and timer descriptors. Those that a process set with alarm or setitimer go with it. */
static void put_timers(struct lines *l, int process, const char *comm)
{
    char path[64], target[64], text[32];
    u64 timers = 0;
    int fd = openat(process, "timers", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        while (read(fd, text, 1) > 0)
            timers += text[0] == 'I'; /* "ID:" begins each */
        close(fd);
    }
    for (int i = 0; i < 256; i++) {
        path[0] = 0;
        text_add(path, sizeof path, "fd/");
        text_add_number(path, sizeof path, (u64)i);
        ssize_t n = readlinkat(process, path, target, sizeof target - 1);
        target[n > 0 ? n : 0] = 0;
        timers += !strcmp(target, "anon_inode:[timerfd]");
    }
    if (!timers)
        return;
    line_begin(l, PART_TIMERS);
    line_text(l, comm);
    line_number(l, "timers ", timers, 10);
    line_end(l);
}

static void put_process(struct lines *l, const char *name)
{
    char stat[512], line[256];
    pid_t pid = atoi(name);
    if (pid < 2 || pid == getpid() || is_supervisor(pid))
        return;
    int process = openat(tree_proc(), name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int fd = process < 0 ? -1 : openat(process, "stat", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, stat, sizeof stat - 1);
    if (fd >= 0)
        close(fd);
    if (n > 0) {
        stat[n] = 0;
        char *comm = strchr(stat, '('), *end = strrchr(stat, ')');
        fd = openat(process, "cmdline", O_RDONLY | O_CLOEXEC);
        n = fd < 0 ? 0 : read(fd, line, sizeof line - 1);
        if (fd >= 0)
            close(fd);
        for (ssize_t i = 0; i < n; i++)
            line[i] = line[i] ? line[i] : ' ';
        line[n > 0 ? n : 0] = 0;
        if (comm && end) {
            end[1] = 0;
            line_begin(l, PART_PROCESSES);
            line_text(l, comm);
            line_text(l, line);
            line_end(l);
            put_timers(l, process, comm);
        }
    }
    if (process >= 0)
        close(process);
}

static void put_processes(struct lines *l)
{
    siginfo_t none;
    /* Whatever lives in the namespace of a first process has come from it: no child, no process. */
    if (getpid() == 1 && waitid(P_ALL, 0, &none, WEXITED | WNOHANG | WNOWAIT | __WALL) && errno == ECHILD)
        return;
    int fd = tree_proc() < 0 ? -1 : openat(tree_proc(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    each_name(l, fd, put_process);
    close(fd);
}

static void put_names(struct lines *l)
{
    struct utsname name;
    if (uname(&name))
        return;
    line_begin(l, PART_ENVIRONMENT);
    line_text(l, "host name");
    line_text(l, name.nodename);
    line_text(l, name.domainname);
    line_end(l);
}

void fingerprint_cheap(struct lines *l)
{
    put_space(l);
    put_processes(l);
    put_sockets(l);
    put_mounts(l);
    put_ipc(l);
    put_names(l);
}
