#include "tar.h"

#include <errno.h>
#include <string.h>

/* Where the fields of a header are. */
enum {
    NAME = 0,
    MODE = 100,
    UID = 108,
    GID = 116,
    SIZE = 124,
    MTIME = 136,
    CHECKSUM = 148,
    TYPE = 156,
    TARGET = 157,
    MAGIC = 257,
    MAJOR = 329,
    MINOR = 337,
    PREFIX = 345,
};

/* What headers ahead of an entry say of it. */
struct ahead {
    u8 has_path, has_target, has_size, has_uid, has_gid, has_mtime;
};

static int failed(int err)
{
    errno = err;
    return -1;
}

static int fill(struct tar_reader *r)
{
    if (r->start == r->end)
        r->start = r->end = 0;
    ssize_t n = r->read(r->from, r->data + r->end, sizeof r->data - r->end);
    if (n < 0)
        return -1;
    r->end += (size_t)n;
    return n ? 1 : 0;
}

/* Exactly so many bytes. An archive that ends before is not a whole one. */
static int take(struct tar_reader *r, u8 *to, size_t length)
{
    for (size_t done = 0; done < length;) {
        if (r->start == r->end) {
            int more = fill(r);
            if (more <= 0)
                return more ? -1 : failed(EBADMSG);
        }
        size_t n = r->end - r->start < length - done ? r->end - r->start : length - done;
        memcpy(to + done, r->data + r->start, n);
        r->start += n;
        done += n;
    }
    return 0;
}

ssize_t tar_content(struct tar_reader *r, const u8 **data)
{
    u8 waste[TAR_BLOCK];
    if (!r->left) {
        size_t padding = r->padding;
        r->padding = 0;
        return take(r, waste, padding) ? -1 : 0;
    }
    if (r->start == r->end) {
        int more = fill(r);
        if (more <= 0)
            return more ? -1 : failed(EBADMSG);
    }
    size_t n = r->end - r->start;
    if (n > r->left)
        n = (size_t)r->left;
    *data = r->data + r->start;
    r->start += n;
    r->left -= n;
    return (ssize_t)n;
}

static void expect(struct tar_reader *r, u64 size)
{
    r->left = size;
    r->padding = (u32)((TAR_BLOCK - size % TAR_BLOCK) % TAR_BLOCK);
}

static int skip(struct tar_reader *r)
{
    const u8 *data;
    ssize_t n;
    while ((n = tar_content(r, &data)) > 0)
        ;
    return n < 0 ? -1 : 0;
}

/* Octal digits with spaces around them, or GNU's binary form. */
static int number(const u8 *at, size_t length, int64_t *value)
{
    u64 found = 0;
    size_t i = 0;
    if (at[0] & 0x80) {
        int negative = at[0] == 0xff;
        if (!negative && at[0] != 0x80)
            return -1;
        for (i = 1; i < length; i++) {
            if (i + 8 < length && at[i] != (negative ? 0xff : 0))
                return -1;
            found = found << 8 | at[i];
        }
        *value = negative && length < 9 ? (int64_t)(found | UINT64_MAX << (8 * (length - 1))) : (int64_t)found;
        return 0;
    }
    while (i < length && at[i] == ' ')
        i++;
    for (; i < length && at[i] >= '0' && at[i] <= '7'; i++)
        found = found << 3 | (u64)(at[i] - '0');
    for (; i < length; i++)
        if (at[i] != ' ' && at[i])
            return -1;
    *value = (int64_t)found;
    return 0;
}

static int is_zero(const u8 *block)
{
    for (size_t i = 0; i < TAR_BLOCK; i++)
        if (block[i])
            return 0;
    return 1;
}

static int has_checksum(const u8 *block)
{
    int64_t wanted;
    u32 sum = 0;
    for (size_t i = 0; i < TAR_BLOCK; i++)
        sum += i >= CHECKSUM && i < CHECKSUM + 8 ? ' ' : block[i];
    return !number(block + CHECKSUM, 8, &wanted) && wanted == (int64_t)sum;
}

/* A text that has its own length into one of TAR_PATH bytes. */
static int set_text(char *to, const u8 *text, size_t length)
{
    size_t fits = length < TAR_PATH ? length : TAR_PATH - 1;
    memcpy(to, text, fits);
    to[fits] = 0;
    if (fits < length)
        return failed(ENAMETOOLONG);
    return memchr(text, 0, length) ? failed(EINVAL) : 0;
}

static u64 decimal(const u8 **at, const u8 *end)
{
    u64 value = 0;
    for (; *at < end && **at >= '0' && **at <= '9' && value < UINT64_MAX / 16; (*at)++)
        value = value * 10 + (u64)(**at - '0');
    return value;
}

/* "-1.25": seconds and the nanoseconds after them. */
static int set_mtime(struct tar_entry *e, const u8 *at, const u8 *end)
{
    int negative = at < end && *at == '-';
    at += negative;
    u64 seconds = decimal(&at, end), fraction = 0;
    at += at < end && *at == '.';
    for (u32 i = 0; i < 9; i++) {
        fraction *= 10;
        if (at < end && *at >= '0' && *at <= '9')
            fraction += (u64)(*at++ - '0');
    }
    if (seconds > (u64)INT64_MAX / 4)
        return failed(EBADMSG);
    e->seconds = negative ? -(int64_t)seconds : (int64_t)seconds;
    if (negative && fraction) {
        e->seconds--;
        fraction = 1000000000 - fraction;
    }
    e->nanoseconds = (u32)fraction;
    return 0;
}

static int set_number(u64 *to, u64 most, const u8 *at, const u8 *end)
{
    const u8 *start = at;
    *to = decimal(&at, end);
    return at != end || at == start || *to > most ? failed(EBADMSG) : 0;
}

static int is_key(const u8 *key, size_t length, const char *name)
{
    return strlen(name) == length && !memcmp(key, name, length);
}

static int take_record(struct tar_entry *e, struct ahead *ahead, const u8 *key, size_t key_length, const u8 *value, const u8 *end)
{
    u64 found = 0;
    if (is_key(key, key_length, "path")) {
        ahead->has_path = 1;
        return set_text(e->path, value, (size_t)(end - value));
    }
    if (is_key(key, key_length, "linkpath")) {
        ahead->has_target = 1;
        return set_text(e->target, value, (size_t)(end - value));
    }
    if (is_key(key, key_length, "size")) {
        ahead->has_size = 1;
        return set_number(&e->size, INT64_MAX, value, end);
    }
    if (is_key(key, key_length, "mtime")) {
        ahead->has_mtime = 1;
        return set_mtime(e, value, end);
    }
    if (is_key(key, key_length, "uid") || is_key(key, key_length, "gid")) {
        int failure = set_number(&found, UINT32_MAX, value, end);
        *(key[0] == 'u' ? &e->uid : &e->gid) = (u32)found;
        *(key[0] == 'u' ? &ahead->has_uid : &ahead->has_gid) = 1;
        return failure;
    }
    if (key_length > 11 && !memcmp(key, "GNU.sparse.", 11))
        return failed(EOPNOTSUPP);
    return 0;
}

/* "LENGTH KEY=VALUE\n", one after another; the length is that of the whole record. */
static int take_records(struct tar_entry *e, struct ahead *ahead, const u8 *at, size_t length)
{
    const u8 *end = at + length;
    while (at < end) {
        const u8 *start = at;
        u64 size = decimal(&at, end);
        if (at == end || *at != ' ' || size < (u64)(at - start) + 3 || size > (u64)(end - start) || start[size - 1] != '\n')
            return failed(EBADMSG);
        const u8 *stop = start + size - 1, *key = at + 1, *equals = memchr(key, '=', (size_t)(stop - key));
        if (!equals || equals == key)
            return failed(EBADMSG);
        if (take_record(e, ahead, key, (size_t)(equals - key), equals + 1, stop))
            return -1;
        at = start + size;
    }
    return 0;
}

/* The content of a header that is about the next entry, whole, in reader->records. */
static int take_ahead(struct tar_reader *r, u64 size)
{
    if (size > sizeof r->records)
        return failed(EBADMSG);
    u8 waste[TAR_BLOCK];
    return take(r, r->records, (size_t)size) || take(r, waste, (TAR_BLOCK - size % TAR_BLOCK) % TAR_BLOCK) ? -1 : 0;
}

static size_t field_length(const u8 *field, size_t most)
{
    const u8 *end = memchr(field, 0, most);
    return end ? (size_t)(end - field) : most;
}

static void take_name(struct tar_entry *e, const u8 *block)
{
    size_t prefix = memcmp(block + MAGIC, "ustar", 6) ? 0 : field_length(block + PREFIX, 155);
    size_t name = field_length(block + NAME, 100);
    memcpy(e->path, block + PREFIX, prefix);
    if (prefix)
        e->path[prefix++] = '/';
    memcpy(e->path + prefix, block + NAME, name);
    e->path[prefix + name] = 0;
}

/* Takes ".", doubled and closing slashes out. What could lead out of the tree is an error, and stays as it is, to be told. */
static int clean(char *path)
{
    u32 depth = 0;
    if (path[0] == '/')
        return failed(EINVAL);
    for (const char *at = path; *at;) {
        size_t length = strcspn(at, "/");
        if (length == 2 && at[0] == '.' && at[1] == '.')
            return failed(EINVAL);
        depth += length && !(length == 1 && at[0] == '.');
        at += length + (at[length] == '/');
    }
    if (depth > TAR_DEPTH)
        return failed(ENAMETOOLONG);
    char *to = path;
    for (const char *at = path; *at;) {
        size_t length = strcspn(at, "/");
        const char *next = at + length + (at[length] == '/');
        if (length && !(length == 1 && at[0] == '.')) {
            if (to != path)
                *to++ = '/';
            memmove(to, at, length);
            to += length;
        }
        at = next;
    }
    *to = 0;
    return 0;
}

/* The header of the entry itself, where those ahead of it have not said something else. */
static int take_entry(struct tar_entry *e, const struct ahead *ahead, const u8 *block)
{
    int64_t mode, uid, gid, size, mtime, major = 0, minor = 0;
    u8 type = block[TYPE] ? block[TYPE] : TAR_FILE;
    if (!ahead->has_path)
        take_name(e, block);
    if (!ahead->has_target && set_text(e->target, block + TARGET, field_length(block + TARGET, 100)))
        return -1;
    if (number(block + MODE, 8, &mode) || number(block + UID, 8, &uid) || number(block + GID, 8, &gid) ||
        number(block + SIZE, 12, &size) || number(block + MTIME, 12, &mtime) || size < 0)
        return failed(EBADMSG);
    if (type == TAR_CHARACTER || type == TAR_BLOCK_DEVICE)
        if (number(block + MAJOR, 8, &major) || number(block + MINOR, 8, &minor))
            return failed(EBADMSG);
    size_t length = strlen(e->path);
    if (type == '7') /* a file that wants to lie in one piece */
        type = TAR_FILE;
    if (type == TAR_FILE && length && e->path[length - 1] == '/') /* how a directory was written before there was a type */
        type = TAR_DIRECTORY;
    if (type < TAR_FILE || type > TAR_FIFO)
        return failed(EOPNOTSUPP);
    e->type = type;
    e->mode = (u32)mode & 07777;
    e->major = (u32)major;
    e->minor = (u32)minor;
    if (!ahead->has_uid)
        e->uid = (u32)uid;
    if (!ahead->has_gid)
        e->gid = (u32)gid;
    if (!ahead->has_size)
        e->size = (u64)size;
    if (type != TAR_FILE)
        e->size = 0;
    if (!ahead->has_mtime) {
        e->seconds = mtime;
        e->nanoseconds = 0;
    }
    if (clean(e->path) || (type == TAR_HARD_LINK && clean(e->target)))
        return -1;
    if (!e->path[0] && type != TAR_DIRECTORY)
        return failed(EINVAL);
    return (type == TAR_HARD_LINK || type == TAR_SYMLINK) && !e->target[0] ? failed(EINVAL) : 0;
}

int tar_next(struct tar_reader *r, struct tar_entry *e)
{
    struct ahead ahead = {0};
    u8 block[TAR_BLOCK];
    if (skip(r))
        return -1;
    e->path[0] = e->target[0] = 0;
    for (;;) {
        int64_t size;
        if (take(r, block, sizeof block))
            return -1;
        if (is_zero(block))
            return 0;
        if (!has_checksum(block))
            return failed(EBADMSG);
        u8 type = block[TYPE];
        if (type != 'x' && type != 'g' && type != 'L' && type != 'K') {
            if (take_entry(e, &ahead, block))
                return -1;
            expect(r, e->size);
            return 1;
        }
        if (number(block + SIZE, 12, &size) || size < 0)
            return failed(EBADMSG);
        if (take_ahead(r, (u64)size))
            return -1;
        if (type == 'x' && take_records(e, &ahead, r->records, (size_t)size))
            return -1;
        size_t length = field_length(r->records, (size_t)size);
        if (type == 'L' && set_text(e->path, r->records, length))
            return -1;
        if (type == 'K' && set_text(e->target, r->records, length))
            return -1;
        ahead.has_path |= type == 'L';
        ahead.has_target |= type == 'K';
    }
}
