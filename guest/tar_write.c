#include "tar.h"

#include <string.h>

enum { HEADER_NAME = 100 };

static size_t put_decimal(u8 *to, u64 value)
{
    u8 digits[20];
    size_t count = 0;
    do
        digits[count++] = (u8)('0' + value % 10);
    while (value /= 10);
    for (size_t i = 0; i < count; i++)
        to[i] = digits[count - 1 - i];
    return count;
}

static void put_octal(u8 *to, size_t length, u64 value)
{
    for (size_t i = length - 1; i-- > 0; value >>= 3)
        to[i] = (u8)('0' + (value & 7));
    to[length - 1] = 0;
}

/* "LENGTH KEY=VALUE\n"; the length counts its own digits. */
static size_t put_record(u8 *to, const char *key, const void *value, size_t length)
{
    u8 digits[20];
    size_t rest = 1 + strlen(key) + 1 + length + 1, total = rest + 1;
    while (total != rest + put_decimal(digits, total))
        total = rest + put_decimal(digits, total);
    u8 *at = to + put_decimal(to, total);
    *at++ = ' ';
    memcpy(at, key, strlen(key));
    at += strlen(key);
    *at++ = '=';
    memcpy(at, value, length);
    at[length] = '\n';
    return total;
}

static size_t put_number(u8 *to, const char *key, u64 value)
{
    u8 digits[20];
    return put_record(to, key, digits, put_decimal(digits, value));
}

static size_t put_time(u8 *to, int64_t seconds, u32 nanoseconds)
{
    u8 text[40];
    size_t length = 0;
    int negative = seconds < 0;
    u64 whole = negative ? (u64)(-(seconds + (nanoseconds != 0))) : (u64)seconds;
    u32 fraction = negative && nanoseconds ? 1000000000 - nanoseconds : nanoseconds;
    if (negative)
        text[length++] = '-';
    length += put_decimal(text + length, whole);
    text[length++] = '.';
    for (u32 unit = 100000000; unit; unit /= 10)
        text[length++] = (u8)('0' + fraction / unit % 10);
    return put_record(to, "mtime", text, length);
}

static int is_ascii(const char *text)
{
    for (; *text; text++)
        if ((u8)*text & 0x80)
            return 0;
    return 1;
}

static size_t put_records(u8 *to, const struct tar_entry *e)
{
    size_t length = 0, path = strlen(e->path), target = strlen(e->target);
    int long_path = path + (e->type == TAR_DIRECTORY) > HEADER_NAME, long_target = target > HEADER_NAME;
    /* Records are UTF-8 unless this one comes first; a name here is whatever bytes it is. */
    if ((long_path && !is_ascii(e->path)) || (long_target && !is_ascii(e->target)))
        length += put_record(to, "hdrcharset", "BINARY", 6);
    if (long_path)
        length += put_record(to + length, "path", e->path, path);
    if (long_target)
        length += put_record(to + length, "linkpath", e->target, target);
    if (e->size >> 33)
        length += put_number(to + length, "size", e->size);
    if (e->uid >> 21)
        length += put_number(to + length, "uid", e->uid);
    if (e->gid >> 21)
        length += put_number(to + length, "gid", e->gid);
    if (e->nanoseconds || (u64)e->seconds >> 33)
        length += put_time(to + length, e->seconds, e->nanoseconds);
    return length;
}

static void put_block(u8 *to, u8 type, const char *name, const char *target, const struct tar_entry *e)
{
    size_t length = strlen(name);
    memset(to, 0, TAR_BLOCK);
    memcpy(to, name, length < HEADER_NAME ? length : HEADER_NAME);
    if (type == TAR_DIRECTORY && length < HEADER_NAME)
        to[length] = '/';
    length = strlen(target);
    memcpy(to + 157, target, length < HEADER_NAME ? length : HEADER_NAME);
    put_octal(to + 100, 8, e->mode);
    put_octal(to + 108, 8, e->uid >> 21 ? 0 : e->uid);
    put_octal(to + 116, 8, e->gid >> 21 ? 0 : e->gid);
    put_octal(to + 124, 12, e->size >> 33 ? 0 : e->size);
    put_octal(to + 136, 12, (u64)e->seconds >> 33 ? 0 : (u64)e->seconds);
    to[156] = type;
    memcpy(to + 257, "ustar\00000", 8);
    put_octal(to + 329, 8, e->major & 07777777);
    put_octal(to + 337, 8, e->minor & 07777777);
    u32 sum = 8 * ' ';
    for (size_t i = 0; i < TAR_BLOCK; i++)
        sum += to[i];
    put_octal(to + 148, 7, sum);
    to[155] = ' ';
}

size_t tar_header(u8 *to, const struct tar_entry *e)
{
    u8 *at = to;
    size_t records = put_records(to + TAR_BLOCK, e);
    if (records) {
        static struct tar_entry ahead = {.mode = 0644};
        ahead.size = records;
        put_block(at, 'x', "././@PaxHeader", "", &ahead);
        at += TAR_BLOCK + records;
        size_t padding = (TAR_BLOCK - records % TAR_BLOCK) % TAR_BLOCK;
        memset(at, 0, padding);
        at += padding;
    }
    put_block(at, e->type, e->path, e->target, e);
    return (size_t)(at - to) + TAR_BLOCK;
}
