#include "users.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { FILE_LIMIT = 1 << 20 };

/* The file's text with a NUL behind it, or NULL. O_NONBLOCK: a FIFO in its place must not hang us. */
static char *read_file(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return NULL;
    struct stat st;
    char *text = NULL;
    if (!fstat(fd, &st) && S_ISREG(st.st_mode)) {
        size_t size = st.st_size < FILE_LIMIT ? (size_t)st.st_size : FILE_LIMIT, length = 0;
        text = malloc(size + 1);
        ssize_t n;
        while (text && length < size && (n = read(fd, text + length, size - length)) > 0)
            length += (size_t)n;
        if (text)
            text[length] = 0;
    }
    close(fd);
    return text;
}

/* Cuts the next line into its ":" fields; NULL at the end. Lines with fewer fields have empty ones. */
static char *next_line(char **at, char **fields, int count)
{
    char *line = *at;
    if (!line || !*line)
        return NULL;
    char *end = strchr(line, '\n');
    if (end)
        *end = 0;
    *at = end ? end + 1 : line + strlen(line);
    char *rest = line;
    for (int i = 0; i < count; i++) {
        fields[i] = rest;
        char *colon = strchr(rest, ':');
        if (colon)
            *colon = 0;
        rest = colon ? colon + 1 : rest + strlen(rest);
    }
    return line;
}

/* A decimal id, or -1. 0xffffffff is no id: to the kernel it means "unchanged". */
static long long parse_id(const char *text)
{
    long long id = 0;
    if (!*text)
        return -1;
    for (; *text; text++) {
        if (*text < '0' || *text > '9')
            return -1;
        id = id * 10 + (*text - '0');
        if (id >= 0xffffffffLL)
            return -1;
    }
    return id;
}

static void copy(char *to, size_t size, const char *text)
{
    *to = 0;
    text_add(to, size, text);
}

/* Fills `user` from the entry with that name, or with that uid where name is NULL. 1 if there is one. */
static int find_entry(const char *name, long long uid, struct user *user)
{
    char *text = read_file("/etc/passwd"), *at = text, *f[7];
    int found = 0;
    while (!found && next_line(&at, f, 7)) {
        long long id = parse_id(f[2]), gid = parse_id(f[3]);
        if (id < 0 || gid < 0 || (name ? strcmp(f[0], name) != 0 : id != uid))
            continue;
        user->uid = (uid_t)id;
        user->gid = (gid_t)gid;
        copy(user->name, sizeof user->name, f[0]);
        copy(user->home, sizeof user->home, f[5][0] == '/' ? f[5] : "/");
        found = 1;
    }
    free(text);
    return found;
}

static int is_member(const char *list, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = list; at && *at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, name, length) == 0 && (at[length] == 0 || at[length] == ','))
            return 1;
    }
    return 0;
}

/* Walks /etc/group: the id of `group` by name (-1 if it is not there), and the groups of which the user is a member. */
static long long read_groups(const char *group, struct user *user)
{
    char *text = read_file("/etc/group"), *at = text, *f[4];
    long long wanted = -1;
    while (next_line(&at, f, 4)) {
        long long id = parse_id(f[2]);
        if (id < 0)
            continue;
        if (group && wanted < 0 && strcmp(f[0], group) == 0)
            wanted = id;
        if (user->name[0] && is_member(f[3], user->name) && user->group_count < MAX_GROUPS)
            user->groups[user->group_count++] = (gid_t)id;
    }
    free(text);
    return wanted;
}

static int look_up(const char *spec, struct user *user)
{
    memset(user, 0, sizeof *user);
    user->home[0] = '/';
    if (!spec) {
        uid_t uid = geteuid();
        if (!find_entry(NULL, uid, user))
            user->uid = uid;
        user->gid = getegid();
        return 0;
    }
    char name[256] = "";
    if (strlen(spec) >= sizeof name)
        return ENOENT;
    text_add(name, sizeof name, spec);
    char *group = strchr(name, ':');
    if (group)
        *group++ = 0;
    long long id = parse_id(name);
    if (!*name || (group && !*group))
        return EINVAL;
    if (!find_entry(name, 0, user) && (id < 0 || !find_entry(NULL, id, user))) {
        if (id < 0 && strcmp(name, "root") != 0)
            return ENOENT;
        /* A number without an entry: group 0, as other container engines do. So is root, whom the kernel knows: an image may
         * have no such file, and a program may have removed it. */
        user->uid = id < 0 ? 0 : (uid_t)id;
    }
    long long gid = read_groups(group, user);
    if (group) {
        /* A group that is named stands alone: the memberships of the entry would widen what was asked for. */
        gid = gid < 0 ? parse_id(group) : gid;
        if (gid < 0)
            return ENOENT;
        user->gid = (gid_t)gid;
        user->group_count = 0;
    }
    if (user->group_count < MAX_GROUPS)
        user->groups[user->group_count++] = user->gid;
    return 0;
}

static struct {
    char spec[256];
    struct user user;
    struct stat files[2];
    time_t since;
    u8 known;
} memo;

static int same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

/* 1: the files are as they were read. One that had changed just then could have changed again and bear the same time. */
static int memo_holds(void)
{
    static const char *const names[2] = {"/etc/passwd", "/etc/group"};
    for (int i = 0; i < 2; i++) {
        struct stat now;
        if (stat(names[i], &now) || !same_file(&now, &memo.files[i]) || now.st_ctim.tv_sec + 1 >= memo.since)
            return 0;
    }
    return 1;
}

void user_remember(const char *spec)
{
    memo.known = 0;
    memo.since = time(NULL);
    if (!*spec || strlen(spec) >= sizeof memo.spec || stat("/etc/passwd", &memo.files[0]) || stat("/etc/group", &memo.files[1]))
        return;
    memo.known = !look_up(spec, &memo.user);
    memo.spec[0] = 0;
    text_add(memo.spec, sizeof memo.spec, spec);
}

int user_find(const char *spec, struct user *user)
{
    if (spec && memo.known && strcmp(spec, memo.spec) == 0 && memo_holds()) {
        *user = memo.user;
        return 0;
    }
    return look_up(spec, user);
}

int user_become(const struct user *user)
{
    uid_t uid = geteuid(), real_uid = getuid();
    gid_t gid = getegid(), real_gid = getgid();
    int same = uid == user->uid && real_uid == user->uid && gid == user->gid && real_gid == user->gid;
    /* Raw calls: we may share memory with our parent, and libc's wrappers keep state for all threads. */
    if (syscall(SYS_setgroups, user->group_count, user->groups) && !same)
        return errno;
    if (same)
        return 0;
    if (syscall(SYS_setresgid, user->gid, user->gid, user->gid))
        return errno;
    if (syscall(SYS_setresuid, user->uid, user->uid, user->uid))
        return errno;
    return 0;
}
