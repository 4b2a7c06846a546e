/* Feeds arbitrary bytes to the tar reader, in pieces of arbitrary size; what it takes is written and has to be read back the same.
 *
 * With clang: -fsanitize=fuzzer,address. With another compiler archives are mutated as random.h says. */
#include "../tar.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const u8 *data, size_t size);

struct input {
    const u8 *data;
    size_t left, piece;
};

static ssize_t give(void *from, u8 *to, size_t room)
{
    struct input *input = from;
    size_t n = room < input->piece ? room : input->piece;
    n = n < input->left ? n : input->left;
    memcpy(to, input->data, n);
    input->data += n;
    input->left -= n;
    return (ssize_t)n;
}

/* Nothing that comes out may lead out of a tree. */
static void check_path(const char *path)
{
    assert(strlen(path) < TAR_PATH && path[0] != '/');
    for (const char *at = path; *at;) {
        size_t length = strcspn(at, "/");
        assert(length && !(length == 1 && at[0] == '.') && !(length == 2 && at[0] == '.' && at[1] == '.'));
        at += length + (at[length] == '/');
        assert(*at || at[-1] != '/');
    }
}

static void check_again(const struct tar_entry *entry)
{
    static struct tar_reader reader;
    static struct tar_entry again;
    static u8 header[TAR_HEADER_MOST + 2 * TAR_BLOCK];
    size_t length = tar_header(header, entry);
    assert(length <= TAR_HEADER_MOST && length % TAR_BLOCK == 0);
    struct input input = {header, length, sizeof header};
    memset(&reader, 0, offsetof(struct tar_reader, data));
    reader.read = give;
    reader.from = &input;
    assert(tar_next(&reader, &again) == 1);
    assert(again.type == entry->type && again.mode == entry->mode && again.size == entry->size);
    assert(again.uid == entry->uid && again.gid == entry->gid);
    assert(again.seconds == entry->seconds && again.nanoseconds == entry->nanoseconds);
    assert(!strcmp(again.path, entry->path) && !strcmp(again.target, entry->target));
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
    static struct tar_reader reader;
    static struct tar_entry entry;
    if (!size)
        return 0;
    struct input input = {data + 1, size - 1, 1 + 7u * data[0]};
    const u8 *content;
    ssize_t n;
    int more;
    memset(&reader, 0, offsetof(struct tar_reader, data));
    reader.read = give;
    reader.from = &input;
    while ((more = tar_next(&reader, &entry)) > 0) {
        u64 taken = 0;
        check_path(entry.path);
        if (entry.type == TAR_HARD_LINK)
            check_path(entry.target);
        if (entry.path[0] && entry.seconds > INT64_MIN / 2 && entry.seconds < INT64_MAX / 4)
            check_again(&entry);
        while ((n = tar_content(&reader, &content)) > 0)
            taken += (u64)n;
        assert(n < 0 || taken == entry.size);
        if (n < 0)
            break;
    }
    assert(more >= 0 || errno == EBADMSG || errno == EINVAL || errno == ENAMETOOLONG || errno == EOPNOTSUPP);
    return 0;
}

#ifdef STANDALONE
#include "random.h"

#include <stdio.h>

static void random_text(char *to, size_t most)
{
    static const char letters[] = "ab./ \n\xff";
    size_t length = random_number() % 8 ? random_number() % 24 : random_number() % most;
    for (size_t i = 0; i < length; i++)
        to[i] = letters[random_number() % (random_number() % 3 ? 2 : sizeof letters - 1)];
    to[length] = 0;
}

/* Checksums by chance are rare: those of half the blocks that claim to be headers are made right again. */
static void mend(u8 *block)
{
    u32 sum = 8 * ' ';
    for (size_t i = 0; i < TAR_BLOCK; i++)
        sum += i >= 148 && i < 156 ? 0 : block[i];
    snprintf((char *)block + 148, 8, "%06o", sum & 0777777);
    block[155] = ' ';
}

static void feed_one(void)
{
    static u8 input[1 + 8 * (TAR_HEADER_MOST + 2 * TAR_BLOCK)];
    static struct tar_entry entry;
    size_t size = 1;
    input[0] = (u8)random_number();
    for (u32 entries = 1 + random_number() % 6; entries; entries--) {
        size_t start = size;
        entry.type = (u8)('0' + random_number() % 7);
        entry.mode = random_number() & 07777;
        entry.uid = random_number() >> random_number() % 31;
        entry.size = random_number() % 4 ? random_number() % 700 : (u64)random_number() << random_number() % 32;
        entry.seconds = (int64_t)random_number() << random_number() % 20;
        entry.seconds = random_number() % 2 ? entry.seconds : -entry.seconds;
        entry.nanoseconds = random_number() % 2 ? random_number() % 1000000000 : 0;
        random_text(entry.path, 4000);
        random_text(entry.target, 4000);
        size += tar_header(input + size, &entry);
        for (u32 flips = random_number() % 4; flips; flips--)
            input[start + random_number() % (size - start)] = (u8)random_number();
        for (size_t at = start; at < size; at += TAR_BLOCK)
            if (!memcmp(input + at + 257, "ustar", 5) && random_number() % 4)
                mend(input + at);
        size_t content = (size_t)(entry.type == '0' && entry.size < 700 ? (entry.size + 511) / 512 * 512 : 0);
        memset(input + size, 'x', content);
        size += content;
    }
    memset(input + size, 0, 2 * TAR_BLOCK - 1);
    LLVMFuzzerTestOneInput(input, size + (random_number() % 3 ? TAR_BLOCK : 0));
}
#endif
