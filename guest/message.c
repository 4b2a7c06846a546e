#include "message.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT = -1 };

/* One tag of a message: its exact length or TEXT, whether it repeats. */
struct rule {
    signed char length;
    u8 known, repeats;
};

static const struct rule run_rules[29] = {
    [1] = {1, 1, 0},     [2] = {TEXT, 1, 1},  [3] = {TEXT, 1, 1},  [4] = {TEXT, 1, 0},  [5] = {TEXT, 1, 0},
    [6] = {1, 1, 0},     [7] = {4, 1, 0},     [8] = {8, 1, 0},     [9] = {4, 1, 0},     [10] = {8, 1, 0},
    [11] = {4, 1, 0},    [12] = {1, 1, 0},    [13] = {4, 1, 0},    [14] = {8, 1, 0},    [15] = {20, 1, 1},
    [16] = {TEXT, 1, 0}, [17] = {1, 1, 0},    [18] = {1, 1, 0},    [20] = {1, 1, 0},    [21] = {TEXT, 1, 0}, [22] = {TEXT, 1, 0},
    [23] = {4, 1, 0},    [24] = {TEXT, 1, 0}, [25] = {8, 1, 0},    [26] = {8, 1, 0},    [27] = {1, 1, 0},
    [28] = {8, 1, 0},
};
static const struct rule connect_rules[4] = {[1] = {TEXT, 1, 0}, [2] = {2, 1, 0}, [3] = {4, 1, 0}};
static const struct rule hello_rules[6] = {[1] = {4, 1, 0}, [2] = {8, 1, 0}, [3] = {1, 1, 0}, [4] = {1, 1, 0}, [5] = {1, 1, 0}};

/* Checks every field against its rule; counts[tag] is how often each is there. */
static int check_fields(const u8 *at, const u8 *end, const struct rule *rules, size_t count, u32 *counts)
{
    struct field f;
    int more;
    while ((more = field_next(&at, end, &f)) > 0) {
        if (f.tag >= count || !rules[f.tag].known)
            return -1;
        const struct rule *rule = &rules[f.tag];
        if (rule->length == TEXT ? memchr(f.value, 0, f.length) != NULL : f.length != (u32)rule->length)
            return -1;
        if (counts[f.tag]++ && !rule->repeats)
            return -1;
        if (counts[f.tag] > MAX_VALUES)
            return -1;
    }
    return more;
}

static void take_number(struct run *run, u8 tag, const u8 *v)
{
    switch (tag) {
    case 1: run->kind = *v; break;
    case 6: run->stdin_pipe = *v; break;
    case 7:
        run->has_pty = 1;
        run->rows = get_u16(v);
        run->columns = get_u16(v + 2);
        break;
    case 8: run->deadline_ms = get_u64(v); break;
    case 9: run->grace_ms = get_u32(v); break;
    case 10: run->keep = get_u64(v); break;
    case 11: run->window = get_u32(v); break;
    case 12: run->channel = *v; break;
    case 13: run->drain_ms = get_u32(v); break;
    case 14: run->output_limit = get_u64(v); break;
    case 15:
        run->rlimits[run->rlimit_count].resource = get_u32(v);
        run->rlimits[run->rlimit_count].soft = get_u64(v + 4);
        run->rlimits[run->rlimit_count++].hard = get_u64(v + 12);
        break;
    case 17: run->merge = *v; break;
    case 18: run->quiet = *v; break;
    case 20: run->operation = *v; break;
    case 23:
        run->has_mode = 1;
        run->mode = get_u32(v);
        break;
    case 25: run->offset = get_u64(v); break;
    case 26: run->limit = get_u64(v); break;
    case 27: run->options = *v; break;
    case 28:
        run->has_size = 1;
        run->size = get_u64(v);
        break;
    default: break;
    }
}

static void take_text(struct run *run, u8 tag, char *text, size_t length)
{
    switch (tag) {
    case 2:
        if (!run->arg_count)
            run->text_length = length;
        run->args[run->arg_count++] = text;
        break;
    case 3: run->env[run->env_count++] = text; break;
    case 4: run->cwd = text; break;
    case 5: run->user = text; break;
    case 16: run->shell = text; break;
    case 21: run->path = text; break;
    case 22: run->path2 = text; break;
    case 24: run->owner = text; break;
    default: break;
    }
}

static int failed(u8 *bytes, int err)
{
    free(bytes);
    errno = err;
    return -1;
}

int run_parse(struct run *run, u8 *bytes, size_t length)
{
    u32 counts[29] = {0};
    memset(run, 0, sizeof *run);
    if (check_fields(bytes, bytes + length, run_rules, 29, counts) || !counts[1] || counts[15] > MAX_RLIMITS)
        return failed(bytes, EPROTO);
    run->args = calloc((size_t)counts[2] + counts[3] + 5, sizeof(char *));
    if (!run->args)
        return failed(bytes, ENOMEM);
    run->env = run->args + counts[2] + 1;
    run->bytes = bytes;
    run->window = 262144;
    run->drain_ms = 100;
    run->keep = run->limit = UINT64_MAX;
    const u8 *at = bytes, *end = bytes + length;
    u8 *stop = NULL; /* where the text before ends: its NUL replaces a tag that has been read by then */
    struct field f;
    while (field_next(&at, end, &f) > 0) {
        if (stop)
            *stop = 0;
        stop = NULL;
        if (run_rules[f.tag].length != TEXT) {
            take_number(run, f.tag, f.value);
            continue;
        }
        stop = bytes + (f.value - bytes) + f.length;
        take_text(run, f.tag, (char *)(bytes + (f.value - bytes)), f.length);
    }
    if (stop)
        *stop = 0;
    return 0;
}

void run_free(struct run *run)
{
    free(run->args);
    free(run->bytes);
    memset(run, 0, sizeof *run);
}

const char *run_error(const struct run *run)
{
    if (run->kind > KIND_FILE)
        return "kind is not 0, 1 or 2";
    if (run->stdin_pipe > 1 || run->channel > 1 || run->merge > 1 || run->quiet > 1)
        return "a switch is not 0 or 1";
    if (run->window > (u32)1 << 31)
        return "window above 2^31";
    if (run->kind == KIND_FILE) {
        if (run->operation < OP_READ || run->operation > OP_FINGERPRINT)
            return "unknown file operation";
        if (!run->path || !*run->path)
            return "the file operation needs a path";
        if ((run->operation == OP_RENAME || run->operation == OP_SYMLINK) && (!run->path2 || !*run->path2))
            return "the file operation needs a second path";
        if (run->options > 63)
            return "unknown flags";
        return NULL;
    }
    if (!run->arg_count)
        return "no arg";
    if (run->kind == KIND_SHELL && run->arg_count != 1)
        return "shell text is one arg";
    if (run->shell && !*run->shell)
        return "empty shell";
    for (u32 i = 0; i < run->env_count; i++)
        if (!strchr(run->env[i], '=') || run->env[i][0] == '=')
            return "env is not NAME=value";
    for (u32 i = 0; i < run->rlimit_count; i++)
        if (run->rlimits[i].resource >= RLIM_NLIMITS)
            return "unknown resource in rlimit";
    return NULL;
}

int connect_parse(struct connect_request *request, u8 *bytes, size_t length)
{
    u32 counts[4] = {0};
    memset(request, 0, sizeof *request);
    if (check_fields(bytes, bytes + length, connect_rules, 4, counts))
        return failed(bytes, EPROTO);
    request->bytes = bytes;
    request->window = 262144;
    const u8 *at = bytes;
    struct field f;
    while (field_next(&at, bytes + length, &f) > 0) {
        if (f.tag == 1) {
            request->unix_path = (char *)(bytes + (f.value - bytes));
            request->unix_length = f.length;
        } else if (f.tag == 2) {
            request->has_tcp = 1;
            request->tcp = get_u16(f.value);
        } else {
            request->window = get_u32(f.value);
        }
    }
    if (request->unix_path)
        request->unix_path[request->unix_length] = 0;
    return 0;
}

const char *connect_error(const struct connect_request *request)
{
    if ((request->unix_path != NULL) == request->has_tcp)
        return "one of unix and tcp is needed";
    if (request->unix_path && (!request->unix_length || request->unix_length > 107))
        return "the path of a Unix socket has 1 to 107 bytes";
    if (request->has_tcp && !request->tcp)
        return "port 0";
    if (request->window > (u32)1 << 31)
        return "window above 2^31";
    return NULL;
}

int hello_parse(struct hello *hello, const u8 *bytes, size_t length)
{
    u32 counts[6] = {0};
    memset(hello, 0, sizeof *hello);
    if (check_fields(bytes, bytes + length, hello_rules, 6, counts) || !counts[1])
        return -1;
    const u8 *at = bytes;
    struct field f;
    while (field_next(&at, bytes + length, &f) > 0) {
        if (f.tag == 1)
            hello->version = get_u32(f.value);
        else if (f.tag == 2)
            hello->life_ms = get_u64(f.value);
        else if (f.tag == 3)
            hello->unisolated = *f.value;
        else if (f.tag == 4)
            hello->fingerprint = *f.value;
        else
            hello->ahead = *f.value;
    }
    return hello->version == 1 && hello->unisolated <= 1 && hello->fingerprint <= 1 && hello->ahead <= 1 ? 0 : -1;
}
