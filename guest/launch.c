/* The launcher's loop. It waits for messages, for sandboxes that end and for clients that let go of one, and never for
 * a single one of them. */
#include "launch.h"

#include "guest.h"
#include "handover.h"
#include "launch_sys.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#define BUCKETS 1024
#define RETRY_MS 2
#define QUIET_MS 1 /* how long nothing must have come before a spare is made: it would slow down the last request's sandbox */
#define ID_RANGE 65536u
#define LAST_MS 10000 /* how long the launcher stays to clean up after its client is gone */

struct box {
    struct box *next;
    struct blank blank;
    int status; /* socket to the client, -1 when let go */
    int wait_status;
    bool ended, unwanted;
};

static struct {
    struct launch_setup setup;
    struct box *boxes[BUCKETS];
    size_t count, unremoved;
    int epoll, control, signals, client, self;
    bool closing;
    struct box *spare; /* a blank made when there is nothing else to do, so that a request finds one */
    bool spares_fail;
    uint32_t id_next;
    int id_locks; /* -1: without */
} launcher;

static uint8_t ids_taken[65536 / 8]; /* a bit for each range */

static char *setup_message, *message; /* LAUNCH_MESSAGE_MAX bytes each, and a last one */

static struct box **slot_of(pid_t pid)
{
    struct box **slot = &launcher.boxes[(unsigned)pid % BUCKETS];
    while (*slot && (*slot)->blank.pid != pid)
        slot = &(*slot)->next;
    return slot;
}

static void watch(int fd, void *what)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = what};
    if (epoll_ctl(launcher.epoll, EPOLL_CTL_ADD, fd, &event) < 0)
        _exit(70);
}

static void tell(const struct box *box, const void *words, size_t size)
{
    if (box->status >= 0)
        send(box->status, words, size, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void tell_status(const struct box *box, char tag)
{
    struct {
        char tag;
        int32_t status;
    } __attribute__((packed)) words = {tag, box->wait_status};
    tell(box, &words, sizeof words);
}

static uint32_t id_range(void) { return launcher.setup.full_ids ? ID_RANGE : 1; }

/* Whether nobody on this host has that range of ids. Locks belong to what was opened, not to a process, and the kernel lets go of
 * them when the launcher ends; src/proofbox/host/idranges.py takes the same ones. */
static bool lock_ids(uint32_t slot, short how)
{
    struct flock lock = {.l_type = how, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    return launcher.id_locks < 0 || fcntl(launcher.id_locks, K_F_OFD_SETLK, &lock) == 0;
}

/* A range of ids that no other sandbox has; or the one id that will own its user namespace, which no other one of this launcher
 * has. Kernel quotas for each user (keys, inotify watches, pending signals) are then shared with nobody. */
static uint32_t take_ids(void)
{
    uint32_t first = launcher.setup.id_first, range = id_range(), slots = (launcher.setup.id_last - first) / range + 1;

    if (!launcher.setup.full_ids && !launcher.setup.nested_ids)
        return 0;
    for (uint32_t step = 0; step < slots; step++) {
        uint32_t slot = launcher.id_next++ % slots;
        if (ids_taken[slot / 8] >> slot % 8 & 1 || !lock_ids(slot, F_WRLCK))
            continue;
        ids_taken[slot / 8] |= (uint8_t)(1 << slot % 8);
        return first + slot * range;
    }
    return first;
}

static void give_ids(uint32_t base)
{
    uint32_t slot = (base - launcher.setup.id_first) / id_range();
    if (launcher.setup.full_ids || launcher.setup.nested_ids)
        ids_taken[slot / 8] &= (uint8_t)~(1 << slot % 8);
    lock_ids(slot, F_UNLCK);
}

/* An ended sandbox that nobody wants: its cgroups go, then the client hears so and the record goes. A cgroup can be busy
 * for a moment after its last process was reaped; then this is tried again. */
static bool finish(struct box *box)
{
    if (!groups_remove(box->blank.groups, &box->blank.groups_size))
        return false;
    tell_status(box, 'D');
    if (box->status >= 0) {
        /* A child that was just cloned may still hold a copy: closing alone would leave it in the epoll set. */
        epoll_ctl(launcher.epoll, EPOLL_CTL_DEL, box->status, NULL);
        close(box->status);
    }
    struct box **slot = &launcher.boxes[(unsigned)box->blank.pid % BUCKETS];
    while (*slot != box)
        slot = &(*slot)->next;
    *slot = box->next;
    launcher.count--;
    give_ids(box->blank.id_base);
    free(box->blank.groups);
    free(box);
    return true;
}

static void give_up(struct box *box)
{
    if (!box->unwanted && !box->ended)
        kill(box->blank.pid, SIGKILL); /* not yet reaped, so the number is still its own */
    box->unwanted = true;
    if (box->ended && !finish(box))
        launcher.unremoved++;
}

static void reap(void)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG | __WALL)) > 0) {
        struct box *box = *slot_of(pid);
        if (!box)
            continue;
        if (box == launcher.spare) {
            launcher.spare = NULL;
            launcher.spares_fail = true; /* whatever ended it may end the next one too: not in a loop */
            blank_close(&box->blank);
            box->unwanted = true;
        }
        box->ended = true;
        box->wait_status = status;
        if (!box->unwanted)
            tell_status(box, 'E');
        else if (!finish(box))
            launcher.unremoved++;
    }
}

static void retry_removals(void)
{
    launcher.unremoved = 0;
    for (size_t i = 0; i < BUCKETS; i++)
        for (struct box *box = launcher.boxes[i], *next; box; box = next) {
            next = box->next;
            if (box->ended && box->unwanted && !finish(box))
                launcher.unremoved++;
        }
}

static struct box *make_blank(const struct launch_request *request)
{
    struct box *box = calloc(1, sizeof *box);
    if (!box)
        _exit(71);
    blank_make(&launcher.setup, request, take_ids(), launcher.self, &box->blank);
    box->status = -1;
    box->ended = box->blank.pid < 0;
    box->next = launcher.boxes[(unsigned)box->blank.pid % BUCKETS];
    launcher.boxes[(unsigned)box->blank.pid % BUCKETS] = box;
    launcher.count++;
    return box;
}

/* Without a full range of ids a blank opens the layers itself, and an old one would not see what was mounted since. */
static bool spare_wanted(void)
{
    return launcher.setup.full_ids && !launcher.spare && !launcher.spares_fail && !launcher.closing;
}

static void make_spare(void)
{
    struct box *box = make_blank(NULL);
    if (!box->blank.error[0]) {
        launcher.spare = box;
        return;
    }
    launcher.spares_fail = true; /* the next request makes its own and is told why that fails, if it does */
    blank_close(&box->blank);
    give_up(box);
}

/* The spare if it lives, or a new one. */
static struct box *take_blank(const struct launch_request *request)
{
    struct box *box = launcher.spare;
    if (!box || request->host_network)
        return make_blank(request);
    launcher.spare = NULL;
    struct pollfd gone = {.fd = box->blank.sync, .events = POLLIN};
    if (poll(&gone, 1, 0) == 0)
        return box;
    blank_close(&box->blank);
    give_up(box);
    return make_blank(request);
}

static void launch(const char *bytes, size_t size, const int *fds, size_t count)
{
    struct launch_request request;

    if (!launch_read(bytes, size, &request))
        _exit(71);
    struct box *box = take_blank(&request);
    if (!box->blank.error[0])
        launch_start(&launcher.setup, &request, (struct text){bytes, size}, &box->blank, fds, count);
    blank_close(&box->blank);
    close(fds[0]);
    for (size_t i = 2; i < count; i++)
        close(fds[i]);
    box->status = fds[1];
    watch(box->status, box);
    launcher.spares_fail = box->blank.error[0] != '\0';
    if (box->blank.error[0]) {
        char text[sizeof box->blank.error + 1];
        int length = snprintf(text, sizeof text, "F%s", box->blank.error);
        tell(box, text, (size_t)length);
        if (!box->ended)
            kill(box->blank.pid, SIGKILL);
    }
}

/* One message of the client and its descriptors. 0 at the end of the connection, -1 if there is none now. */
static ssize_t receive(char *into, int *fds, size_t *count)
{
    *count = 2 + FROZEN_MAX;
    ssize_t size = take_over(launcher.control, into, LAUNCH_MESSAGE_MAX, fds, count, MSG_DONTWAIT);
    if (size < 0 && (errno == EMSGSIZE || errno == EMFILE))
        _exit(72);
    if (size < 0)
        return errno == EAGAIN || errno == EINTR ? -1 : 0;
    into[size] = '\0';
    return size;
}

static void end_all(void)
{
    launcher.closing = true;
    epoll_ctl(launcher.epoll, EPOLL_CTL_DEL, launcher.control, NULL);
    if (launcher.client >= 0)
        epoll_ctl(launcher.epoll, EPOLL_CTL_DEL, launcher.client, NULL);
    for (size_t i = 0; i < BUCKETS; i++)
        for (struct box *box = launcher.boxes[i], *next; box; box = next) {
            next = box->next;
            give_up(box);
        }
}

/* One message at a time: between two of them the ends of others are seen to. */
static void serve_control(void)
{
    int fds[2 + FROZEN_MAX];
    size_t count;
    ssize_t size = receive(message, fds, &count);

    if (size == 0)
        end_all();
    else if (size > 0 && message[0] == MESSAGE_LAUNCH && count >= 2)
        launch(message, (size_t)size, fds, count);
    else if (size > 0)
        _exit(73);
}

/* 'K' ends the sandbox and keeps its counters; 'D', or the end of the connection, ends it and removes everything. */
static void serve_box(struct box *box)
{
    char order;
    ssize_t size = recv(box->status, &order, 1, MSG_DONTWAIT);

    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (size == 1 && order == 'K') {
        if (!box->ended)
            kill(box->blank.pid, SIGKILL);
        return;
    }
    epoll_ctl(launcher.epoll, EPOLL_CTL_DEL, box->status, NULL);
    give_up(box);
}

static bool set_up(int control)
{
    struct rlimit files;
    sigset_t set;
    int none[2 + FROZEN_MAX];
    size_t nothing;
    struct pollfd ready = {.fd = control, .events = POLLIN};

    launcher.control = control;
    setup_message = malloc(2 * (LAUNCH_MESSAGE_MAX + 1));
    if (!setup_message)
        return false;
    message = setup_message + LAUNCH_MESSAGE_MAX + 1;
    if (poll(&ready, 1, -1) < 0)
        return false;
    ssize_t size = receive(setup_message, none, &nothing);
    if (size <= 0 || setup_message[0] != MESSAGE_SETUP || !setup_read(setup_message, (size_t)size, &launcher.setup))
        return false;
    launcher.id_locks = launcher.setup.id_locks ? open(launcher.setup.id_locks, O_RDWR | O_NOFOLLOW | O_CLOEXEC) : -1;
    launcher.setup.keyring = syscall(SYS_keyctl, K_KEYCTL_JOIN_SESSION_KEYRING, NULL) >= 0;
    /* Launchers begin at different places. */
    if (getrandom(&launcher.id_next, sizeof launcher.id_next, 0) < 0)
        return false;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    signals_default(); /* those of every sandbox */
    sigfillset(&set);
    sigprocmask(SIG_BLOCK, &set, NULL);
    launcher.signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    launcher.epoll = epoll_create1(EPOLL_CLOEXEC);
    launcher.self = (int)syscall(SYS_pidfd_open, getpid(), 0);
    /* The end of the control socket is not enough: a process that the client forked may hold a copy of its end. */
    launcher.client = (int)syscall(SYS_pidfd_open, launcher.setup.client, 0);
    return launcher.signals >= 0 && launcher.epoll >= 0 && launcher.self >= 0 && launcher.client >= 0 &&
           getppid() == (pid_t)launcher.setup.client;
}

static void drain_signals(void)
{
    struct signalfd_siginfo taken[8];
    while (read(launcher.signals, taken, sizeof taken) > 0)
        ;
    reap();
}

static void remove_leftovers(void)
{
    const char *at = launcher.setup.fields, *end = at + launcher.setup.fields_size;
    struct item item;
    while (item_next(&at, end, &item) > 0)
        if (item.tag == SETUP_LEFTOVER)
            rmdir(item.value.at);
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int launcher_main(int control)
{
    struct epoll_event events[64];
    int64_t last = 0;

    if (!set_up(control))
        return 1;
    prctl(PR_SET_NAME, "proofbox-launch", 0, 0, 0);
    watch(launcher.signals, &launcher.signals);
    watch(launcher.client, &launcher.client);
    watch(launcher.control, &launcher.control);
    while (!launcher.closing || (launcher.count && now_ms() < last)) {
        int wait = spare_wanted() ? QUIET_MS : launcher.unremoved ? RETRY_MS : launcher.closing ? 100 : -1;
        int ready = epoll_wait(launcher.epoll, events, launcher.closing ? 1 : 64, wait);
        for (int i = 0; i < ready; i++) {
            void *what = events[i].data.ptr;
            if (what == &launcher.signals)
                continue; /* last: it frees records that other events of this round point to */
            else if (what == &launcher.control)
                serve_control();
            else if (what == &launcher.client)
                end_all();
            else
                serve_box(what);
            if (launcher.closing)
                break; /* the same */
        }
        drain_signals();
        if (!ready && spare_wanted())
            make_spare();
        if (launcher.unremoved)
            retry_removals();
        if (launcher.closing && !last)
            last = now_ms() + LAST_MS;
    }
    remove_leftovers();
    return launcher.count ? 1 : 0;
}
