/* Every way to leave something behind in a sandbox, and for each a look whether it is there.
 *
 *   dirty NAME     does it: exit 0; 2: the sandbox refused it (errno on stdout)
 *   look NAME      exit 0 if it is there, 1 if not
 *
 * What needs a process to live on is done by one that has left its session and closed everything else. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <mqueue.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <net/route.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#define THING "/usr/share/thing"
#define KEY 0x7e57
#define PORT 4242

static int parents(const char *path)
{
    char part[PATH_MAX];
    for (const char *at = path + 1; (at = strchr(at, '/')); at++) {
        memcpy(part, path, (size_t)(at - path));
        part[at - path] = 0;
        if (mkdir(part, 0755) && errno != EEXIST)
            return -1;
    }
    return 0;
}

static int put(const char *path, const char *text)
{
    int fd = parents(path) ? -1 : open(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
        return -1;
    return close(fd);
}

static int holds(const char *path, const char *text)
{
    static char data[1 << 16];
    int fd = open(path, O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, data, sizeof data - 1);
    if (fd >= 0)
        close(fd);
    data[n > 0 ? n : 0] = 0;
    return strstr(data, text) != NULL;
}

/* Runs on in the background once `prepare` has worked; the result is that of `prepare`. */
static int stay(int (*prepare)(void))
{
    int told[2], result[2] = {0, 0};
    if (pipe2(told, O_CLOEXEC))
        return -1;
    pid_t first = fork();
    if (first == 0) {
        setsid();
        if (fork())
            _exit(0);
        prctl(PR_SET_NAME, "left-behind");
        for (int fd = 0; fd < 3; fd++)
            close(fd);
        result[0] = prepare();
        result[1] = errno;
        if (write(told[1], result, sizeof result) != sizeof result)
            _exit(1);
        close(told[1]);
        while (result[0] == 0)
            pause();
        _exit(1);
    }
    close(told[1]);
    waitpid(first, NULL, 0);
    if (read(told[0], result, sizeof result) != sizeof result)
        return -1;
    errno = result[1];
    return result[0];
}

static int somebody_stayed(void)
{
    char path[64], name[64] = "";
    for (int pid = 2; pid < 200; pid++) {
        snprintf(path, sizeof path, "/proc/%d/comm", pid);
        int fd = open(path, O_RDONLY);
        if (fd < 0)
            continue;
        ssize_t n = read(fd, name, sizeof name - 1);
        close(fd);
        if (n > 0 && !strncmp(name, "left-behind", 11))
            return 1;
    }
    return 0;
}

static int nothing(void) { return 0; }
static int daemon_way(void) { return stay(nothing); }

/* files that were not there */
static const char *const places[][2] = {
    {"file in /etc", "/etc/evil"},
    {"file in /usr", "/usr/bin/evil"},
    {"file in /var", "/var/lib/evil/state"},
    {"file in /tmp", "/tmp/evil"},
    {"file in /dev", "/dev/evil"},
    {"file in /dev/shm", "/dev/shm/evil"},
    {"file in /root", "/root/.bashrc"},
    {"file in a home", "/home/user/.profile"},
    {"file in /run", "/run/evil.pid"},
    {"file in the root", "/evil"},
    {"name with a newline", "/tmp/a b\nfiles: evil \xff"},
    {"crontab", "/var/spool/cron/crontabs/root"},
    {"at job", "/var/spool/at/a00001019"},
    {"preloaded library", "/etc/ld.so.preload"},
    {"linker cache", "/etc/ld.so.cache"},
    {"time zone", "/etc/timezone"},
    {"locale archive", "/usr/lib/locale/locale-archive"},
    {"environment file", "/etc/environment"},
    {"profile", "/etc/profile.d/evil.sh"},
    {"bytecode", "/usr/lib/python3/__pycache__/module.cpython-311.pyc"},
    {"start of every python", "/usr/lib/python3/sitecustomize.py"},
    {"pip cache", "/root/.cache/pip/http/0/1"},
    {"apt lists", "/var/lib/apt/lists/evil_Packages"},
    {"shell history", "/root/.bash_history"},
    {"ssh keys", "/root/.ssh/authorized_keys"},
    {"git configuration", "/root/.gitconfig"},
    {"resolver", "/etc/resolv.conf"},
    {"host names", "/etc/hosts"},
    {"message of the day", "/etc/motd"},
    {"core file", "/core"},
};

static int deep(void)
{
    if (mkdir("/tmp/deep", 0755) || chdir("/tmp/deep"))
        return -1;
    for (int level = 0; level < 700; level++)
        if (mkdir("d", 0755) || chdir("d"))
            return -1;
    return 0;
}
static int is_deep(void) { return !access("/tmp/deep", F_OK); }

static int hold_deleted(void)
{
    static char block[4096] = "evil";
    int fd = open("/tmp/deleted", O_RDWR | O_CREAT, 0600);
    if (fd < 0 || unlink("/tmp/deleted"))
        return -1;
    for (int i = 0; i < 64; i++)
        if (write(fd, block, sizeof block) != sizeof block)
            return -1;
    return 0;
}
static int deleted_way(void) { return stay(hold_deleted); }
static int attribute(void) { return setxattr(THING, "user.evil", "1", 1, 0); }
static int has_attribute(void) { return getxattr(THING, "user.evil", NULL, 0) > 0; }
static int capability(void)
{
    const unsigned value[] = {0x02000001, 1 << 10, 0, 0, 0};
    return setxattr(THING, "security.capability", value, sizeof value, 0);
}
static int has_capability(void) { return getxattr(THING, "security.capability", NULL, 0) > 0; }
/* An access list as the kernel has it: the owner, root once more, the group, the mask, all others. */
static int access_list(const char *path, const char *kind)
{
    const struct {
        unsigned version;
        struct { unsigned short tag, rights; unsigned id; } entries[5];
    } list = {2, {{1, 6, ~0u}, {2, 7, 0}, {4, 4, ~0u}, {16, 7, ~0u}, {32, 4, ~0u}}};
    return setxattr(path, kind, &list, sizeof list, 0);
}
static int acl(void) { return access_list(THING, "system.posix_acl_access"); }
static int has_acl(void) { return getxattr(THING, "system.posix_acl_access", NULL, 0) > 0; }
static int default_acl(void) { return access_list("/usr/share", "system.posix_acl_default"); }
static int has_default_acl(void) { return getxattr("/usr/share", "system.posix_acl_default", NULL, 0) > 0; }
static int immutable(void)
{
    int fd = open(THING, O_RDONLY), flags = 0;
    if (ioctl(fd, FS_IOC_GETFLAGS, &flags))
        return -1;
    flags |= FS_IMMUTABLE_FL;
    return ioctl(fd, FS_IOC_SETFLAGS, &flags);
}
static int is_immutable(void)
{
    int fd = open(THING, O_RDONLY), flags = 0;
    return !ioctl(fd, FS_IOC_GETFLAGS, &flags) && (flags & FS_IMMUTABLE_FL);
}
static int whiteout(void) { return mknod("/tmp/whiteout", S_IFCHR, 0); }
static int has_whiteout(void)
{
    struct stat st;
    return !lstat("/tmp/whiteout", &st);
}
static int mode(void) { return chmod(THING, 0666); }
static int has_mode(void)
{
    struct stat st;
    return !stat(THING, &st) && (st.st_mode & 07777) != 0644;
}
static int owner(void) { return chown(THING, 1000, 1000); }
static int has_owner(void)
{
    struct stat st;
    return !stat(THING, &st) && st.st_uid == 1000;
}
static int times(void)
{
    const struct timespec both[2] = {{1, 0}, {1, 0}};
    return utimensat(AT_FDCWD, THING, both, 0);
}
static int has_times(void)
{
    struct stat st;
    return !stat(THING, &st) && st.st_mtime == 1;
}
static int content(void) /* as long as before, and with the same time of modification */
{
    struct stat st;
    int fd = open(THING, O_WRONLY);
    if (fd < 0 || fstat(fd, &st) || write(fd, "evil", 4) != 4)
        return -1;
    const struct timespec both[2] = {st.st_atim, st.st_mtim};
    return futimens(fd, both);
}
static int has_content(void) { return holds(THING, "evil"); }
static int deletion(void) { return unlink(THING); }
static int is_deleted(void) { return access(THING, F_OK) != 0; }
static int moved_directory(void)
{
    if (rename("/usr/share/data", "/usr/share/else") == 0)
        return 0;
    return errno == EXDEV ? rename("/usr/share/data/one", "/usr/share/else") : -1; /* the overlay leaves it to its caller */
}
static int is_moved(void) { return !access("/usr/share/else", F_OK); }
static int opaque(void)
{
    if (unlink("/usr/share/data/one") || rmdir("/usr/share/data"))
        return -1;
    return mkdir("/usr/share/data", 0755);
}
static int is_opaque(void) { return access("/usr/share/data/one", F_OK) != 0; }
static int hard_link(void) { return link(THING, "/usr/share/second"); }
static int has_link(void) { return !access("/usr/share/second", F_OK); }
static int symbolic(void) { return unlink(THING) ? -1 : symlink("/etc/passwd", THING); }
static int is_symbolic(void)
{
    struct stat st;
    return !lstat(THING, &st) && S_ISLNK(st.st_mode);
}
static int fifo(void) { return mkfifo("/tmp/fifo", 0666); }
static int has_fifo(void) { return !access("/tmp/fifo", F_OK); }
static int set_user_id(void) { return put("/tmp/become", "x") ? -1 : chmod("/tmp/become", 04755); }
static int has_set_user_id(void) { return !access("/tmp/become", F_OK); }
static int hole(void) { return put("/tmp/hole", "") ? -1 : truncate("/tmp/hole", 1 << 20); }
static int has_hole(void) { return !access("/tmp/hole", F_OK); }
static int account(void) { return put("/etc/passwd", "evil:x:0:0::/:/bin/sh\n") ? -1 : put("/etc/group", "evil:x:0:\n"); }
static int has_account(void) { return holds("/etc/passwd", "evil"); }
static int zone(void) { return unlink("/etc/localtime") ? -1 : symlink("/usr/share/zoneinfo/Mars", "/etc/localtime"); }
static int has_zone(void)
{
    char target[64] = "";
    return readlink("/etc/localtime", target, sizeof target - 1) > 0 && strstr(target, "Mars");
}

/* sockets */
static int listens(int family, int kind, int port)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons((unsigned short)port), .sin6_addr = in6addr_loopback};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(family, kind, 0), one = 1;
    if (fd < 0 || (kind == SOCK_STREAM && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one)))
        return -1;
    if (family == AF_INET ? bind(fd, (void *)&four, sizeof four) : bind(fd, (void *)&six, sizeof six))
        return -1;
    return kind == SOCK_STREAM && listen(fd, 4) ? -1 : fd;
}
static int hold_tcp(void) { return listens(AF_INET, SOCK_STREAM, PORT) < 0 ? -1 : 0; }
static int hold_tcp6(void) { return listens(AF_INET6, SOCK_STREAM, PORT + 1) < 0 ? -1 : 0; }
static int hold_udp(void) { return listens(AF_INET, SOCK_DGRAM, PORT + 2) < 0 ? -1 : 0; }
static int tcp_way(void) { return stay(hold_tcp); }
static int tcp6_way(void) { return stay(hold_tcp6); }
static int udp_way(void) { return stay(hold_udp); }
static int taken(int family, int kind, int port)
{
    int fd = listens(family, kind, port);
    if (fd >= 0)
        close(fd);
    return fd < 0;
}
static int has_tcp(void) { return taken(AF_INET, SOCK_STREAM, PORT); }
static int has_tcp6(void) { return taken(AF_INET6, SOCK_STREAM, PORT + 1); }
static int has_udp(void) { return taken(AF_INET, SOCK_DGRAM, PORT + 2); }

static int time_wait(void) /* the connection outlives both of its ends */
{
    int server = listens(AF_INET, SOCK_STREAM, PORT + 3), client = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in to;
    socklen_t size = sizeof to;
    char byte;
    if (server < 0 || client < 0 || getsockname(server, (void *)&to, &size) || connect(client, (void *)&to, size))
        return -1;
    int other = accept(server, NULL, NULL);
    if (other < 0 || shutdown(client, SHUT_WR) || read(other, &byte, 1) != 0 || close(other) || read(client, &byte, 1) != 0)
        return -1;
    close(client);
    close(server);
    return 0;
}
static int has_time_wait(void) { return holds("/proc/net/tcp", ":1095"); }

static int local(const char *name, size_t length, int kind)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    memcpy(to.sun_path, name, length);
    int fd = socket(AF_UNIX, kind, 0);
    if (fd < 0 || bind(fd, (void *)&to, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length)))
        return -1;
    return kind == SOCK_STREAM && listen(fd, 4) ? -1 : fd;
}
static int hold_path(void) { return local("/tmp/socket", 11, SOCK_STREAM) < 0 ? -1 : 0; }
static int hold_abstract(void) { return local("\0evil", 5, SOCK_STREAM) < 0 ? -1 : 0; }
static int path_way(void) { return stay(hold_path); }
static int abstract_way(void) { return stay(hold_abstract); }
static int has_path(void) { return !access("/tmp/socket", F_OK); }
static int has_abstract(void) { return holds("/proc/net/unix", "@evil"); }

/* IPC */
static int shm_way(void) { return shmget(KEY, 4096, IPC_CREAT | 0600) < 0 ? -1 : 0; }
static int has_shm(void) { return shmget(KEY, 0, 0) >= 0; }
static int hold_removed(void)
{
    int id = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
    return id < 0 || shmat(id, NULL, 0) == (void *)-1 ? -1 : shmctl(id, IPC_RMID, NULL);
}
static int removed_way(void) { return stay(hold_removed); }
static int sem_way(void) { return semget(KEY, 2, IPC_CREAT | 0600) < 0 ? -1 : 0; }
static int has_sem(void) { return semget(KEY, 0, 0) >= 0; }
static int msg_way(void) { return msgget(KEY, IPC_CREAT | 0600) < 0 ? -1 : 0; }
static int has_msg(void) { return msgget(KEY, 0) >= 0; }
static int queue_way(void) { return mq_open("/evil", O_CREAT | O_RDWR, 0600, NULL) < 0 ? -1 : 0; }
static int has_queue(void) { return mq_open("/evil", O_RDONLY) >= 0; }
static int hold_in_flight(void) /* a removed file that only a message which nobody has read keeps */
{
    char byte = 0, space[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec text = {&byte, 1};
    struct msghdr message = {.msg_iov = &text, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    struct cmsghdr *given = CMSG_FIRSTHDR(&message);
    int pair[2], fd = open("/tmp/sent", O_RDWR | O_CREAT, 0600);
    if (fd < 0 || put("/tmp/sent", "evil") || unlink("/tmp/sent") || socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        return -1;
    given->cmsg_level = SOL_SOCKET;
    given->cmsg_type = SCM_RIGHTS;
    given->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(given), &fd, sizeof fd);
    return sendmsg(pair[0], &message, 0) == 1 ? close(fd) : -1;
}
static int in_flight(void) { return stay(hold_in_flight); }
static int hold_membership(void)
{
    struct ip_mreq group = {{0}, {0}};
    inet_pton(AF_INET, "239.1.2.3", &group.imr_multiaddr);
    group.imr_interface.s_addr = htonl(INADDR_LOOPBACK);
    return setsockopt(listens(AF_INET, SOCK_DGRAM, PORT + 5), IPPROTO_IP, IP_ADD_MEMBERSHIP, &group, sizeof group);
}
static int membership(void) { return stay(hold_membership); }
static int posix_shm(void) { return shm_open("/evil-memory", O_CREAT | O_RDWR, 0600) < 0 ? -1 : 0; }
static int has_posix_shm(void) { return shm_open("/evil-memory", O_RDONLY, 0) >= 0; }
static int semaphore(void) { return sem_open("/evil", O_CREAT, 0600, 1) == SEM_FAILED ? -1 : 0; }
static int has_semaphore(void) { return !access("/dev/shm/sem.evil", F_OK); }
static int hold_memory_file(void) { return memfd_create("evil", 0) < 0 ? -1 : 0; }
static int memory_file(void) { return stay(hold_memory_file); }

/* keys: -3 the session's keyring, -4 the user's, -5 the user's session's */
static int key(long keyring) { return syscall(SYS_add_key, "user", "evil", "x", 1, keyring) < 0 ? -1 : 0; }
static int session_key(void) { return key(-3); }
static int user_key(void) { return key(-4); }
static int user_session_key(void) { return key(-5); }
static int persistent_key(void) { return syscall(SYS_keyctl, 22, -1, -3) < 0 ? -1 : 0; }
static int has_key(void) { return syscall(SYS_request_key, "user", "evil", NULL, 0) >= 0; }

/* held by a process */
static int hold_terminal(void)
{
    int fd = open("/dev/ptmx", O_RDWR | O_NOCTTY);
    return fd < 0 || unlockpt(fd) ? -1 : 0;
}
static int terminal(void) { return stay(hold_terminal); }
static int has_terminal(void) { return !access("/dev/pts/0", F_OK); }
static int hold_timer_descriptor(void)
{
    const struct itimerspec often = {{3600, 0}, {3600, 0}};
    int fd = timerfd_create(CLOCK_MONOTONIC, 0);
    return fd < 0 ? -1 : timerfd_settime(fd, 0, &often, NULL);
}
static int timer_descriptor(void) { return stay(hold_timer_descriptor); }
static int hold_timer(void)
{
    struct sigevent none = {.sigev_notify = SIGEV_NONE};
    const struct itimerspec often = {{3600, 0}, {3600, 0}};
    timer_t made;
    return timer_create(CLOCK_MONOTONIC, &none, &made) ? -1 : timer_settime(made, 0, &often, NULL);
}
static int timer(void) { return stay(hold_timer); }
static int hold_alarm(void)
{
    const struct itimerval often = {{3600, 0}, {3600, 0}};
    return setitimer(ITIMER_REAL, &often, NULL);
}
static int alarm_way(void) { return stay(hold_alarm); }
static int hold_watch(void) { return inotify_add_watch(inotify_init1(0), THING, IN_ALL_EVENTS) < 0 ? -1 : 0; }
static int watch(void) { return stay(hold_watch); }
static int hold_lock(void) { return flock(open(THING, O_RDONLY), LOCK_EX | LOCK_NB); }
static int lock_way(void) { return stay(hold_lock); }
static int is_locked(void) { return flock(open(THING, O_RDONLY), LOCK_EX | LOCK_NB) != 0; }
static int hold_lease(void) { return fcntl(open(THING, O_RDONLY), F_SETLEASE, F_RDLCK); }
static int lease(void) { return stay(hold_lease); }
static int hold_locked_memory(void)
{
    void *at = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? -1 : mlock(at, 65536);
}
static int locked_memory(void) { return stay(hold_locked_memory); }
static int hold_mapping(void)
{
    return mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, open(THING, O_RDONLY), 0) == MAP_FAILED ? -1 : 0;
}
static int mapping(void) { return stay(hold_mapping); }
static int hold_signal(void)
{
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    return sigprocmask(SIG_BLOCK, &one, NULL) || sigqueue(getpid(), SIGUSR1, (union sigval){.sival_int = 1}) ? -1 : 0;
}
static int pending_signal(void) { return stay(hold_signal); }
static int hold_oom_score(void) { return put("/proc/self/oom_score_adj", "1000"); }
static int oom_score(void) { return stay(hold_oom_score); }

/* the first process, which all others inherit from */
static int first_limit(void)
{
    const struct rlimit few = {32, 32};
    return prlimit(1, RLIMIT_NOFILE, &few, NULL);
}
static int has_first_limit(void)
{
    struct rlimit now;
    return !prlimit(1, RLIMIT_NOFILE, NULL, &now) && now.rlim_cur == 32;
}
static int first_priority(void) { return setpriority(PRIO_PROCESS, 1, 15); }
static int has_first_priority(void) { return getpriority(PRIO_PROCESS, 1) == 15; }
static int first_scheduling(void)
{
    const struct sched_param none = {0};
    return sched_setscheduler(1, SCHED_BATCH, &none);
}
static int has_first_scheduling(void) { return sched_getscheduler(1) == SCHED_BATCH; }
static int first_processors(void)
{
    cpu_set_t set;
    int last = CPU_SETSIZE - 1;
    if (sched_getaffinity(1, sizeof set, &set))
        return -1;
    while (!CPU_ISSET(last, &set))
        last--;
    CPU_CLR(last, &set);
    return sched_setaffinity(1, sizeof set, &set);
}
static int has_first_processors(void)
{
    cpu_set_t set;
    return sched_getaffinity(1, sizeof set, &set) || CPU_COUNT(&set) < sysconf(_SC_NPROCESSORS_ONLN);
}
static int first_io_priority(void) { return (int)syscall(SYS_ioprio_set, 1, 1, 3 << 13); }
static int has_first_io_priority(void) { return syscall(SYS_ioprio_get, 1, 1) >> 13 == 3; }
static int first_oom_score(void) { return put("/proc/1/oom_score_adj", "1000"); }
static int has_first_oom_score(void) { return holds("/proc/1/oom_score_adj", "1000"); }
static int own_limits(void) /* of a process that ends: nobody's */
{
    const struct rlimit few = {32, 32};
    umask(0);
    return setrlimit(RLIMIT_NOFILE, &few) || setpriority(PRIO_PROCESS, 0, 15) ? -1 : 0;
}
static int has_own_limits(void)
{
    struct rlimit now;
    return getrlimit(RLIMIT_NOFILE, &now) || now.rlim_cur == 32 || getpriority(PRIO_PROCESS, 0) == 15 || umask(022) == 0;
}
static int more_core(void)
{
    const struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    return setrlimit(RLIMIT_CORE, &all);
}

/* what is the kernel's */
static int core_pattern(void) { return put("/proc/sys/kernel/core_pattern", "|/tmp/evil"); }
static int has_core_pattern(void) { return holds("/proc/sys/kernel/core_pattern", "evil"); }
static int ipc_setting(void) { return put("/proc/sys/kernel/msgmax", "4242"); }
static int has_ipc_setting(void) { return holds("/proc/sys/kernel/msgmax", "4242"); }
static int net_setting(void) { return put("/proc/sys/net/ipv4/ip_default_ttl", "42"); }
static int has_net_setting(void) { return holds("/proc/sys/net/ipv4/ip_default_ttl", "42"); }
static int host_name(void) { return sethostname("evil", 4); }
static int domain_name(void) { return setdomainname("evil", 4); }
static int has_name(void) { return holds("/proc/sys/kernel/hostname", "evil") || holds("/proc/sys/kernel/domainname", "evil"); }
static int address(void)
{
    struct ifreq request = {.ifr_name = "lo:1"};
    struct sockaddr_in *at = (void *)&request.ifr_addr;
    at->sin_family = AF_INET;
    inet_pton(AF_INET, "10.9.8.7", &at->sin_addr);
    return ioctl(socket(AF_INET, SOCK_DGRAM, 0), SIOCSIFADDR, &request);
}
static int has_address(void) { return holds("/proc/net/fib_trie", "10.9.8.7"); }
static int route(void)
{
    struct rtentry entry = {.rt_flags = RTF_UP, .rt_dev = "lo"};
    struct sockaddr_in *to = (void *)&entry.rt_dst, *mask = (void *)&entry.rt_genmask;
    to->sin_family = mask->sin_family = AF_INET;
    inet_pton(AF_INET, "10.9.0.0", &to->sin_addr);
    inet_pton(AF_INET, "255.255.0.0", &mask->sin_addr);
    return ioctl(socket(AF_INET, SOCK_DGRAM, 0), SIOCADDRT, &entry);
}
static int has_route(void) { return holds("/proc/net/route", "0000090A"); }
static int loopback_down(void)
{
    struct ifreq request = {.ifr_name = "lo"};
    return ioctl(socket(AF_INET, SOCK_DGRAM, 0), SIOCSIFFLAGS, &request);
}
static int is_loopback_down(void) { return taken(AF_INET, SOCK_STREAM, PORT + 9); }
static int mount_way(void) { return mount("evil", "/tmp", "tmpfs", 0, ""); }
static int has_mount(void) { return holds("/proc/self/mountinfo", "evil"); }
static int remount(void) { return mount(NULL, "/proc/sys", NULL, MS_REMOUNT | MS_BIND, NULL); }
static int namespace_way(void) { return unshare(CLONE_NEWUSER | CLONE_NEWNS); }
static int cgroup(void) { return mkdir("/sys/fs/cgroup/evil", 0755) && mount("evil", "/tmp", "cgroup2", 0, NULL) ? -1 : 0; }
static int has_cgroup(void) { return !access("/sys/fs/cgroup/evil", F_OK) || has_mount(); }
static int group_limit(void) /* wherever groups are seen */
{
    static const char *const settings[] = {"pids.max", "memory.max", "cgroup.freeze", "cgroup.procs", "pids/tasks", "memory/tasks"};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        char path[64];
        snprintf(path, sizeof path, "/sys/fs/cgroup/%s", settings[i]);
        int fd = open(path, O_WRONLY);
        if (fd >= 0 && write(fd, "1", 1) == 1)
            return 0;
    }
    return -1;
}
static int memory_setting(void) { return put("/proc/sys/vm/overcommit_memory", "2"); }
static int has_memory_setting(void) { return holds("/proc/sys/vm/overcommit_memory", "2"); }
static int namespace_setting(void) { return put("/proc/sys/user/max_pid_namespaces", "42"); }
static int has_namespace_setting(void) { return holds("/proc/sys/user/max_pid_namespaces", "42"); }
static int neighbour(void)
{
    struct arpreq entry = {.arp_flags = ATF_PERM, .arp_dev = "lo"};
    struct sockaddr_in *at = (void *)&entry.arp_pa;
    at->sin_family = AF_INET;
    inet_pton(AF_INET, "10.9.8.6", &at->sin_addr);
    return ioctl(socket(AF_INET, SOCK_DGRAM, 0), SIOCSARP, &entry);
}
static int has_neighbour(void) { return holds("/proc/net/arp", "10.9.8.6"); }
static int filter(void) { return socket(AF_NETLINK, SOCK_RAW, 12 /* of the packet filter */) < 0 ? -1 : 0; }
static int clock_way(void)
{
    const struct timespec early = {1, 0};
    return clock_settime(CLOCK_REALTIME, &early);
}
static int is_early(void) { return time(NULL) < 1000000000; }
static int stopped(void)
{
    if (stay(nothing))
        return -1;
    for (int pid = 2; pid < 200; pid++) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/comm", pid);
        if (holds(path, "left-behind"))
            return kill(pid, SIGSTOP);
    }
    return -1;
}
static int volume(void) /* at /data: whatever works is enough */
{
    const unsigned long flags[] = {MS_REMOUNT, MS_REMOUNT | MS_BIND, MS_BIND | MS_REC, MS_MOVE, MS_REC | MS_SHARED};
    int worked = 0;
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        worked |= !mount("/data", "/data", NULL, flags[i], NULL) || !mount("/data", "/tmp", NULL, flags[i], NULL);
    worked |= !umount2("/data", MNT_DETACH) || !umount2("/data", 0);
    worked |= !put("/data/one", "evil") || !put("/data/new", "evil") || !put("/data/inner/new", "evil");
    worked |= !truncate("/data/one", 0) || !unlink("/data/one") || !rename("/data/one", "/data/two");
    worked |= !chmod("/data/one", 0777) || !chown("/data/one", 0, 0) || !utimes("/data/one", NULL);
    worked |= !link("/data/one", "/data/two") || !symlink("one", "/data/two") || !mkdir("/data/directory", 0755);
    worked |= !setxattr("/data/one", "user.evil", "1", 1, 0) || !rmdir("/data/inner") || !rename("/data", "/else");
    return worked ? 0 : -1;
}
static int never(void) { return 0; }

static const struct {
    const char *name;
    int (*dirty)(void), (*there)(void);
} ways[] = {
    {"deep directories", deep, is_deep},
    {"deleted but open file", deleted_way, somebody_stayed},
    {"hidden attribute", attribute, has_attribute},
    {"file capability", capability, has_capability},
    {"access list", acl, has_acl},
    {"access list of what is to be made", default_acl, has_default_acl},
    {"file that nobody can change", immutable, is_immutable},
    {"whiteout made by hand", whiteout, has_whiteout},
    {"mode of a template file", mode, has_mode},
    {"owner of a template file", owner, has_owner},
    {"times of a template file", times, has_times},
    {"content of a template file", content, has_content},
    {"deleted template file", deletion, is_deleted},
    {"moved template directory", moved_directory, is_moved},
    {"replaced template directory", opaque, is_opaque},
    {"second link to a template file", hard_link, has_link},
    {"template file made a link", symbolic, is_symbolic},
    {"fifo", fifo, has_fifo},
    {"set-user-id file", set_user_id, has_set_user_id},
    {"file with a hole", hole, has_hole},
    {"account", account, has_account},
    {"local time", zone, has_zone},
    {"tcp listener", tcp_way, has_tcp},
    {"tcp listener on ipv6", tcp6_way, has_tcp6},
    {"udp socket", udp_way, has_udp},
    {"tcp connection in time-wait", time_wait, has_time_wait},
    {"unix socket", path_way, has_path},
    {"abstract unix socket", abstract_way, has_abstract},
    {"descriptor in a message", in_flight, somebody_stayed},
    {"multicast group", membership, somebody_stayed},
    {"system v shared memory", shm_way, has_shm},
    {"removed shared memory in use", removed_way, somebody_stayed},
    {"system v semaphores", sem_way, has_sem},
    {"system v message queue", msg_way, has_msg},
    {"posix message queue", queue_way, has_queue},
    {"posix shared memory", posix_shm, has_posix_shm},
    {"posix semaphore", semaphore, has_semaphore},
    {"memory file", memory_file, somebody_stayed},
    {"key of the session", session_key, has_key},
    {"key of the user", user_key, has_key},
    {"key of the user's session", user_session_key, has_key},
    {"persistent keyring", persistent_key, never},
    {"terminal left open", terminal, has_terminal},
    {"daemon", daemon_way, somebody_stayed},
    {"stopped process", stopped, somebody_stayed},
    {"timer descriptor", timer_descriptor, somebody_stayed},
    {"posix timer", timer, somebody_stayed},
    {"alarm", alarm_way, somebody_stayed},
    {"pending signal", pending_signal, somebody_stayed},
    {"inotify watch", watch, somebody_stayed},
    {"lock on a template file", lock_way, is_locked},
    {"lease on a template file", lease, somebody_stayed},
    {"locked memory", locked_memory, somebody_stayed},
    {"mapping of a template file", mapping, somebody_stayed},
    {"oom score of a process", oom_score, somebody_stayed},
    {"limit of the first process", first_limit, has_first_limit},
    {"priority of the first process", first_priority, has_first_priority},
    {"scheduling of the first process", first_scheduling, has_first_scheduling},
    {"processors of the first process", first_processors, has_first_processors},
    {"io priority of the first process", first_io_priority, has_first_io_priority},
    {"oom score of the first process", first_oom_score, has_first_oom_score},
    {"limits and umask of a process", own_limits, has_own_limits},
    {"core size", more_core, never},
    {"core pattern", core_pattern, has_core_pattern},
    {"setting of ipc", ipc_setting, has_ipc_setting},
    {"setting of the network", net_setting, has_net_setting},
    {"setting of memory", memory_setting, has_memory_setting},
    {"setting of namespaces", namespace_setting, has_namespace_setting},
    {"neighbour of the network", neighbour, has_neighbour},
    {"packet filter", filter, never},
    {"clock", clock_way, is_early},
    {"host name", host_name, has_name},
    {"domain name", domain_name, has_name},
    {"loopback address", address, has_address},
    {"route", route, has_route},
    {"loopback down", loopback_down, is_loopback_down},
    {"mount", mount_way, has_mount},
    {"remount of /proc/sys", remount, never},
    {"namespaces", namespace_way, never},
    {"control group", cgroup, has_cgroup},
    {"limit of a control group", group_limit, never},
    {"volume", volume, never},
};

int main(int count, char **words)
{
    int look = count == 3 && !strcmp(words[1], "look");
    for (size_t i = 0; count == 3 && i < sizeof ways / sizeof *ways; i++) {
        if (strcmp(words[2], ways[i].name))
            continue;
        if (look)
            return !ways[i].there();
        if (!ways[i].dirty())
            return 0;
        printf("%s", strerror(errno));
        return 2;
    }
    for (size_t i = 0; count == 3 && i < sizeof places / sizeof *places; i++) {
        if (strcmp(words[2], places[i][0]))
            continue;
        if (look)
            return !holds(places[i][1], "evil");
        return put(places[i][1], "evil\n") ? 2 : 0;
    }
    return 3;
}
