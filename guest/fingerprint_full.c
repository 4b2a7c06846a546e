/* The full form: the cheap one, what takes longer to read, and every file. It runs as a child of the guest. */
#include "fingerprint.h"

#include "tree.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Where a kind has none at all its table is not read: the kernel looks through that of the whole machine. */
static void put_internet_sockets(struct lines *l, const char *protocol, const char *table)
{
    struct reader r;
    char *line, path[32] = "self/net/";
    text_add(path, sizeof path, table);
    if (!reader_open(&r, path))
        return;
    while ((line = reader_next(&r))) {
        next_word(&line);
        char *local = next_word(&line), *remote = next_word(&line), *state = next_word(&line);
        if (!strchr(local, ':'))
            continue;
        line_begin(l, PART_SOCKETS);
        line_text(l, protocol);
        line_text(l, local);
        line_text(l, remote);
        line_text(l, state);
        line_end(l);
    }
}

static void put_protocols(struct lines *l)
{
    static const char *const tables[][2] = {{"TCP", "tcp"},         {"TCPv6", "tcp6"},         {"UDP", "udp"},   {"UDPv6", "udp6"},
                                            {"UDP-Lite", "udplite"}, {"UDPLITEv6", "udplite6"}, {"RAW", "raw"},   {"RAWv6", "raw6"},
                                            {"PING", "icmp"},       {"PINGv6", "icmp6"}};
    struct reader r;
    char *line;
    if (!reader_open(&r, "self/net/protocols"))
        return;
    while ((line = reader_next(&r))) {
        char *name = next_word(&line);
        next_word(&line);
        char *count = next_word(&line);
        if (!strncmp(name, "UNIX", 4) || !strcmp(count, "0") || !strcmp(count, "-1") || !strcmp(name, "protocol"))
            continue;
        line_begin(l, PART_SOCKETS);
        line_text(l, name);
        line_text(l, count);
        line_end(l);
        for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
            if (!strcmp(name, tables[i][0]))
                put_internet_sockets(l, name, tables[i][1]);
    }
}

static void put_interfaces(struct lines *l)
{
    struct reader r;
    char *line;
    if (reader_open(&r, "self/net/dev"))
        while ((line = reader_next(&r))) {
            char *name = next_word(&line);
            if (!strchr(name, ':') || strchr(name, '|'))
                continue;
            line_begin(l, PART_NETWORK);
            line_text(l, "interface");
            line_text(l, name);
            line_end(l);
        }
}

/* A table of the kernel's, without the columns that only count. `wanted` are the columns that stay, in order. */
static void put_table(struct lines *l, u8 part, const char *path, const char *name, const char *wanted)
{
    struct reader r;
    char *line;
    if (!reader_open(&r, path))
        return;
    while ((line = reader_next(&r))) {
        line_begin(l, part);
        line_text(l, name);
        for (int column = 0; *line && column < 10; column++) {
            char *word = next_word(&line);
            if (strchr(wanted, '0' + column))
                line_text(l, word);
        }
        line_end(l);
    }
}

static u8 setting_part;
static char setting_path[1024];
static int setting_directory = -1;

static void put_setting(struct lines *l, const char *name)
{
    char text[512];
    struct stat st;
    size_t before = strlen(setting_path);
    int fd = openat(setting_directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) || before + strlen(name) + 2 > sizeof setting_path) {
        if (fd >= 0)
            close(fd); /* a setting that may only be written tells nothing */
        return;
    }
    text_add(setting_path, sizeof setting_path, "/");
    text_add(setting_path, sizeof setting_path, name);
    if (S_ISDIR(st.st_mode)) {
        int above = setting_directory;
        setting_directory = fd;
        each_name(l, fd, put_setting);
        setting_directory = above;
    } else if (strcmp(name, "nf_conntrack_count") != 0) {
        ssize_t n = read(fd, text, sizeof text);
        line_begin(l, setting_part);
        line_text(l, setting_path);
        line_text(l, "=");
        line_bytes(l, text, n > 0 ? (size_t)n - (text[n - 1] == '\n') : 0);
        line_end(l);
    }
    close(fd);
    setting_path[before] = 0;
}

/* A directory of /proc/sys, or one setting. */
static void put_settings(struct lines *l, u8 part, const char *directory, const char *name)
{
    setting_part = part;
    setting_path[0] = 0;
    text_add(setting_path, sizeof setting_path, directory);
    char path[64] = "sys/";
    text_add(path, sizeof path, directory);
    setting_directory = tree_proc() < 0 ? -1 : openat(tree_proc(), path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (setting_directory < 0)
        return;
    int fd = setting_directory;
    if (name)
        put_setting(l, name);
    else
        each_name(l, fd, put_setting);
    close(fd);
}

static void put_kernel_settings(struct lines *l)
{
    static const char *const ipc[] = {"shmmax", "shmall", "shmmni", "shm_rmid_forced", "msgmax", "msgmni", "msgmnb", "sem"};
    static const char *const names[] = {"hostname", "domainname", "core_pattern", "osrelease"};
    for (size_t i = 0; i < sizeof ipc / sizeof *ipc; i++)
        put_settings(l, PART_IPC, "kernel", ipc[i]);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        put_settings(l, PART_ENVIRONMENT, "kernel", names[i]);
    put_settings(l, PART_IPC, "fs/mqueue", NULL);
    put_settings(l, PART_NETWORK, "net", NULL);
    put_settings(l, PART_LIMITS, "user", NULL);
}

/* Keys of a user, where it is nobody's outside. */
static void put_keys(struct lines *l)
{
    struct reader r;
    char *line;
    if (reader_open(&r, "key-users"))
        while ((line = reader_next(&r))) {
            line_begin(l, PART_KEYS);
            line_text(l, "user");
            line_text(l, next_word(&line));
            next_word(&line);
            line_text(l, next_word(&line));
            next_word(&line);
            line_text(l, next_word(&line));
            line_end(l);
        }
}

/* The accounts, line by line, so that a difference names the user. The files may be hostile: at most 1 MiB is read. */
static void put_accounts(struct lines *l, const char *path)
{
    char text[4096], line[4096];
    size_t length = 0, total = 0;
    struct stat st;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t n = fstat(fd, &st) || !S_ISREG(st.st_mode) ? 0 : read(fd, text, sizeof text);
    for (; n > 0 && total < 1 << 20; n = read(fd, text, sizeof text)) {
        total += (size_t)n;
        for (ssize_t i = 0; i < n; i++) {
            if (text[i] != '\n' && length < sizeof line) {
                line[length++] = text[i];
                continue;
            }
            line_begin(l, PART_USERS);
            line_text(l, path);
            line_text(l, "");
            line_bytes(l, line, length);
            line_end(l);
            length = 0;
        }
    }
    close(fd);
}

static void put_limit(struct lines *l, const char *name, long value)
{
    line_begin(l, PART_LIMITS);
    line_number(l, name, (u64)value, 10);
    line_end(l);
}

static void put_limits(struct lines *l)
{
    for (int resource = 0; resource < RLIM_NLIMITS; resource++) {
        struct rlimit limit;
        if (getrlimit(resource, &limit))
            continue;
        line_begin(l, PART_LIMITS);
        line_number(l, "rlimit ", (u64)resource, 10);
        line_number(l, "", limit.rlim_cur, 10);
        line_number(l, "", limit.rlim_max, 10);
        line_end(l);
    }
    put_limit(l, "nice ", 20 - getpriority(PRIO_PROCESS, 0));
    put_limit(l, "scheduling ", syscall(SYS_sched_getscheduler, 0)); /* musl only pretends */
    put_limit(l, "io priority ", syscall(SYS_ioprio_get, 1 /* of a process */, 0));
    cpu_set_t processors; /* how many: which ones is the host's choice, another one for each sandbox */
    put_limit(l, "processors ", sched_getaffinity(0, sizeof processors, &processors) ? -1 : CPU_COUNT(&processors));
}

/* What every command inherits from the first process. */
static void put_first_process(struct lines *l)
{
    struct reader r;
    char *line;
    if (reader_open(&r, "1/status"))
        while ((line = reader_next(&r))) {
            char *name = next_word(&line);
            if (strcmp(name, "Umask:") && strncmp(name, "Cap", 3) && strcmp(name, "NoNewPrivs:") && strcmp(name, "Seccomp:"))
                continue;
            line_begin(l, PART_LIMITS);
            line_text(l, name);
            line_text(l, next_word(&line));
            line_end(l);
        }
    line_copy(l, PART_LIMITS, "1/oom_score_adj", 0, "oom_score_adj");
}

int file_fingerprint(struct operation *op)
{
    static u8 room[4 * LINE_MAX_SIZE];
    const struct run *run = op->run;
    struct lines l = {.data = room, .size = sizeof room, .fd = op->ends->out};
    fingerprint_cheap(&l);
    if (run->options & OPT_RECURSIVE) {
        put_protocols(&l);
        line_copy(&l, PART_IPC, "sysvipc/shm", 1, "shm");
        line_copy(&l, PART_IPC, "sysvipc/sem", 1, "sem");
        line_copy(&l, PART_IPC, "sysvipc/msg", 1, "msg");
        put_interfaces(&l);
        line_copy(&l, PART_NETWORK, "self/net/fib_trie", 0, "ip");
        line_copy(&l, PART_NETWORK, "self/net/if_inet6", 0, "ip6");
        put_table(&l, PART_NETWORK, "self/net/route", "route", "012367");
        put_table(&l, PART_NETWORK, "self/net/ipv6_route", "route6", "0123458");
        if (run->options & OPT_PARENTS)
            put_keys(&l);
        put_kernel_settings(&l);
        put_accounts(&l, "/etc/passwd");
        put_accounts(&l, "/etc/group");
        put_limits(&l);
        put_first_process(&l);
        fingerprint_files(&l, run->offset, run->args);
    }
    if (!l.err)
        l.err = write_all(l.fd, l.data, l.used);
    return l.err;
}
