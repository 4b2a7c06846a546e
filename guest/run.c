/* The last steps before a program runs: in the command's own process, which shares its memory with the supervisor until exec. */
#include "supervisor.h"
#include "tree.h"
#include "users.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

static const char *find_env(char *const *env, const char *name)
{
    size_t length = strlen(name);
    for (; *env; env++)
        if (strncmp(*env, name, length) == 0 && (*env)[length] == '=')
            return *env + length + 1;
    return NULL;
}

/* Executes one file; a text without "#!" is run by /bin/sh, as a shell would. Returns the errno. */
static int try_exec(const char *path, char **argv, char **env, u32 count)
{
    execve(path, argv, env);
    int err = errno;
    if (err != ENOEXEC || count > 4096)
        return err;
    char *script[4096 + 3] = {"sh", (char *)path};
    memcpy(script + 2, argv + 1, count * sizeof *argv); /* with the NULL at the end */
    execve("/bin/sh", script, env);
    return err;
}

/* Returns why no program could be executed: the errno that a shell would report. */
static int search_exec(char **argv, char **env, u32 count)
{
    const char *name = argv[0];
    if (!*name)
        return ENOENT;
    if (strchr(name, '/'))
        return try_exec(name, argv, env, count);
    const char *path = find_env(env, "PATH");
    int result = ENOENT;
    for (path = path ? path : DEFAULT_PATH;; path++) {
        const char *end = strchrnul(path, ':');
        char file[PATH_MAX];
        size_t length = (size_t)(end - path), name_length = strlen(name);
        if (length + name_length + 2 <= sizeof file) {
            memcpy(file, path, length);
            file[length] = '/';
            memcpy(file + length + (length > 0), name, name_length + 1);
            int err = try_exec(length ? file : name, argv, env, count);
            if (err == EACCES)
                result = err; /* keep looking, as a shell does */
            else if (err != ENOENT && err != ENOTDIR && err != ENAMETOOLONG && err != ELOOP)
                return err;
        }
        path = end;
        if (!*path)
            return result;
    }
}

static void say(const char *name, int err)
{
    const char *why = err == ENOENT ? "not found" : strerror(err);
    char line[512] = "proofbox: ";
    text_add(line, 300, name);
    text_add(line, sizeof line, ": ");
    text_add(line, sizeof line, why);
    text_add(line, sizeof line, "\n");
    (void)!write(2, line, strlen(line));
}

/* The kernel kills a command before it kills the guest or a supervisor when memory runs out. Best effort: 500 above ours. */
static void raise_oom_score(void)
{
    if (tree_proc() < 0)
        return;
    int fd = openat(tree_proc(), "self/oom_score_adj", O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    char text[16] = "";
    ssize_t n = read(fd, text, sizeof text - 1);
    int score = 0;
    for (ssize_t i = text[0] == '-'; i < n && text[i] >= '0' && text[i] <= '9'; i++)
        score = 10 * score + (text[i] - '0');
    score = (text[0] == '-' ? -score : score) + 500;
    char line[16] = "";
    text_add_number(line, sizeof line, (u64)(score > 1000 ? 1000 : score < 0 ? 0 : score));
    (void)!pwrite(fd, line, strlen(line), 0);
    close(fd);
}

static int set_rlimits(const struct run *run)
{
    for (u32 i = 0; i < run->rlimit_count; i++) {
        int resource = (int)run->rlimits[i].resource;
        struct rlimit now, wanted = {.rlim_cur = run->rlimits[i].soft, .rlim_max = run->rlimits[i].hard};
        if (getrlimit(resource, &now))
            return errno;
        if (wanted.rlim_max > now.rlim_max)
            wanted.rlim_max = now.rlim_max;
        if (wanted.rlim_cur > wanted.rlim_max)
            wanted.rlim_cur = wanted.rlim_max;
        if (setrlimit(resource, &wanted))
            return errno;
    }
    return 0;
}

static int fail(struct command *c, const char *step, int err)
{
    c->failed_step = step;
    c->err = err;
    return 1;
}

static int enter_directory(const struct command *c)
{
    if (c->run->cwd)
        return chdir(c->run->cwd) ? errno : 0;
    if (c->user->home[0] == '/' && !chdir(c->user->home))
        return 0;
    return chdir("/") ? errno : 0;
}

static int place_descriptors(const struct ends *ends)
{
    if (dup2(ends->in, 0) < 0 || dup2(ends->out, 1) < 0 || dup2(ends->err, 2) < 0)
        return errno;
    if (ends->channel >= 0 && dup2(ends->channel, 3) < 0)
        return errno;
    return 0;
}

int command_main(void *argument)
{
    struct command *c = argument;
    setsid();
    if (c->ends->terminal) {
        if (ioctl(c->ends->in, TIOCSCTTY, 0))
            return fail(c, "pty", errno);
        if (c->as_user)
            (void)!fchown(c->ends->in, c->user->uid, (gid_t)-1); /* EINVAL where the terminal's file system cannot map it */
    }
    raise_oom_score();
    int err = set_rlimits(c->run);
    if (err)
        return fail(c, "limit", err);
    if ((err = place_descriptors(c->ends)))
        return fail(c, "pipe", err);
    if (c->as_user && (err = user_become(c->user)))
        return fail(c, "user", err);
    if ((err = enter_directory(c)))
        return fail(c, "cwd", err);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    u32 count = 0;
    while (c->argv[count])
        count++;
    err = search_exec(c->argv, c->run->env, count);
    say(c->argv[0], err);
    _exit(err == ENOENT || err == ENOTDIR ? 127 : 126);
}
