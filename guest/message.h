/* What RUN, CONNECT and the host's HELLO say, taken apart strictly. */
#ifndef PROOFBOX_MESSAGE_H
#define PROOFBOX_MESSAGE_H

#include "frame.h"

#include <sys/resource.h>

enum { KIND_ARGV, KIND_SHELL, KIND_FILE };
enum {
    OP_READ = 1,
    OP_WRITE,
    OP_STAT,
    OP_LIST,
    OP_MKDIR,
    OP_REMOVE,
    OP_RENAME,
    OP_READLINK,
    OP_SYMLINK,
    OP_CHANGE,
    OP_READ_TREE,
    OP_WRITE_TREE,
    OP_FINGERPRINT,
};
enum { OPT_PARENTS = 1, OPT_RECURSIVE = 2, OPT_APPEND = 4, OPT_NOFOLLOW = 8, OPT_EXCLUSIVE = 16, OPT_OWNERS = 32 };
enum { MAX_RLIMITS = 32 };

struct run {
    u8 kind, stdin_pipe, channel, merge, quiet, has_pty, operation, options;
    u8 has_mode, has_size;
    u16 rows, columns;
    u32 grace_ms, window, drain_ms, mode;
    u64 deadline_ms, keep, output_limit, offset, limit, size;
    char **args, **env; /* NULL-terminated; env has room for three more */
    u32 arg_count, env_count, rlimit_count;
    size_t text_length; /* of args[0] */
    char *cwd, *user, *shell, *path, *path2, *owner;
    struct {
        u32 resource;
        u64 soft, hard;
    } rlimits[MAX_RLIMITS];
    u8 *bytes; /* the message, which all strings point into */
};

struct connect_request {
    char *unix_path; /* points into bytes */
    size_t unix_length;
    u8 has_tcp;
    u16 tcp;
    u32 window;
    u8 *bytes;
};

struct hello {
    u32 version;
    u64 life_ms;
    u8 unisolated, fingerprint, ahead;
};

/* 0, or -1: the message breaks the protocol (errno EPROTO), or memory is out (ENOMEM). `bytes` is malloc'ed with one spare
 * byte behind `length`; it belongs to the result, or is freed on failure. */
int run_parse(struct run *run, u8 *bytes, size_t length);
void run_free(struct run *run);
int connect_parse(struct connect_request *request, u8 *bytes, size_t length);
int hello_parse(struct hello *hello, const u8 *bytes, size_t length);

/* NULL, or why a well-formed RUN or CONNECT makes no sense (REFUSED, step `field`). */
const char *run_error(const struct run *run);
const char *connect_error(const struct connect_request *request);

#endif
