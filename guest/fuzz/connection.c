/* Feeds arbitrary bytes to the connection's parser and to the field parsers of every message, in pieces of arbitrary size.
 *
 * With clang: -fsanitize=fuzzer,address. With another compiler frames are mutated as random.h says. */
#include "../message.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const u8 *data, size_t size);

static void check_run(u8 *bytes, size_t length)
{
    struct run run;
    if (run_parse(&run, bytes, length)) {
        assert(errno == EPROTO || errno == ENOMEM);
        return;
    }
    size_t total = 0; /* every string must be readable to its NUL */
    for (u32 i = 0; i < run.arg_count; i++)
        total += strlen(run.args[i]);
    for (u32 i = 0; i < run.env_count; i++)
        total += strlen(run.env[i]);
    char *texts[] = {run.cwd, run.user, run.shell, run.path, run.path2, run.owner};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        total += texts[i] ? strlen(texts[i]) : 0;
    assert(total <= length);
    assert(!run.args[run.arg_count] && !run.env[run.env_count]);
    (void)run_error(&run);
    run_free(&run);
}

static u8 *copy(const struct message *m)
{
    u8 *bytes = m->owned ? m->owned : malloc(m->length + 1);
    assert(bytes);
    if (!m->owned && m->length)
        memcpy(bytes, m->payload, m->length);
    return bytes;
}

static void check_message(const struct message *m)
{
    struct connect_request request;
    struct hello hello;
    if (m->type == MSG_RUN) {
        check_run(copy(m), m->length);
    } else if (m->type == MSG_CONNECT) {
        if (!connect_parse(&request, copy(m), m->length)) {
            (void)connect_error(&request);
            assert(!request.unix_path || strlen(request.unix_path) <= request.unix_length);
            free(request.bytes);
        }
    } else if (m->type == MSG_HELLO) {
        (void)hello_parse(&hello, m->payload, m->length);
    }
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
    struct parser p = {.in = {0}};
    struct message m;
    int more = 0;
    size_t piece = size ? 1 + data[0] : 1;
    for (size_t at = 1; at < size && more >= 0; at += piece) {
        size_t length = size - at < piece ? size - at : piece;
        assert(!buffer_append(&p.in, data + at, length));
        while ((more = parser_next(&p, &m)) > 0)
            check_message(&m);
    }
    assert(more == 0 || p.error);
    parser_free(&p);
    return 0;
}

#ifdef STANDALONE
#include "random.h"

static size_t put_frame(u8 *to, u8 type, u32 stream, u8 flags)
{
    static const u8 tags[] = {1, 2, 3, 4, 5, 6, 7, 8, 15, 16, 20, 21, 24, 28, 29};
    static const u8 lengths[] = {0, 1, 2, 4, 8, 20};
    size_t length = 0;
    for (u32 fields = random_number() % 6; fields; fields--) {
        u32 size = lengths[random_number() % sizeof lengths];
        to[HEADER_SIZE + length] = tags[random_number() % sizeof tags];
        put_u32(to + HEADER_SIZE + length + 1, size);
        for (u32 i = 0; i < size; i++)
            to[HEADER_SIZE + length + 5 + i] = (u8)(random_number() % 4 ? 'a' : random_number());
        length += 5 + size;
    }
    put_header(to, (u32)length, type, flags, 0, stream);
    return HEADER_SIZE + length;
}

static void feed_one(void)
{
    static u8 input[4096];
    size_t size = 1;
    input[0] = (u8)random_number();
    size += put_frame(input + size, MSG_HELLO, 0, 0);
    for (u32 frames = random_number() % 8; frames; frames--)
        size += put_frame(input + size, random_number() % 3 ? MSG_RUN : MSG_CONNECT, 1 + random_number() % 3,
                          random_number() % 4 ? 0 : FLAG_MORE);
    for (u32 flips = random_number() % 6; flips; flips--)
        input[random_number() % size] = (u8)random_number();
    LLVMFuzzerTestOneInput(input, size - random_number() % (size / 4 + 1));
}
#endif
