/* Frames and fields of docs/protocol.md: a strict parser for what the host sends, writers for what the guest answers. */
#ifndef PROOFBOX_FRAME_H
#define PROOFBOX_FRAME_H

#include <stddef.h>
#include <stdint.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t i32;

enum { HEADER_SIZE = 12, FIELD_HEADER_SIZE = 5, MAX_PAYLOAD = 65536, MAX_MESSAGE = 16 << 20, MAX_VALUES = 65536 };
enum { FLAG_MORE = 1, FLAG_EOF = 2 };

enum {
    MSG_HELLO = 0x01,
    MSG_RUN = 0x02,
    MSG_DATA = 0x03,
    MSG_CREDIT = 0x04,
    MSG_SIGNAL = 0x05,
    MSG_RESIZE = 0x06,
    MSG_KILL = 0x07,
    MSG_KILL_ALL = 0x08,
    MSG_LIST = 0x09,
    MSG_CONNECT = 0x0a,
    MSG_CLOSE = 0x0b,
    MSG_PING = 0x0c,
    MSG_LOOK = 0x0d,
    MSG_GUEST_HELLO = 0x81,
    MSG_STARTED = 0x82,
    MSG_GUEST_DATA = 0x83,
    MSG_GUEST_CREDIT = 0x84,
    MSG_END = 0x86,
    MSG_REFUSED = 0x87,
    MSG_REPLY = 0x88,
    MSG_PONG = 0x8c,
    MSG_LOOKED = 0x8d,
    MSG_FATAL = 0x8f,
};

/* The same truth, of which the compiler knows nothing any more: what is stored and then branched on is tested again. QEMU
 * 7.2's emulation forgets a comparison whose result is stored to a page that has to be fetched first, and a branch after it
 * goes the wrong way (docs/decisions/0005-emulated-machines.md). */
static inline u8 told_again(int truth)
{
    __asm__("" : "+r"(truth));
    return (u8)truth;
}

u16 get_u16(const u8 *at);
u32 get_u32(const u8 *at);
u64 get_u64(const u8 *at);
void put_u16(u8 *at, u16 value);
void put_u32(u8 *at, u32 value);
void put_u64(u8 *at, u64 value);

/* A growing byte queue. All functions that may allocate return 0, or -1 when memory is out. */
struct buffer {
    u8 *data;
    size_t start, end, size;
    u8 borrowed; /* the memory is not ours: growing leaves it, and it is never freed */
};

int buffer_reserve(struct buffer *b, size_t room);
int buffer_append(struct buffer *b, const void *data, size_t length);
void buffer_consume(struct buffer *b, size_t length);
void buffer_free(struct buffer *b);
static inline size_t buffer_used(const struct buffer *b) { return b->end - b->start; }

/* One whole message. The payload lives until the next parser_next; where `owned` is set it is the caller's to free, and has
 * one spare byte behind its end. `fresh`: the stream number is above all that were seen before. */
struct message {
    u8 type, flags, fresh;
    u16 pipe;
    u32 stream;
    const u8 *payload;
    size_t length;
    u8 *owned;
};

struct partial;

struct parser {
    struct buffer in;
    struct partial *partials;
    u32 partial_count, highest;
    u8 greeted;
    const char *error; /* what broke the protocol */
};

/* 1: *m is the next message. 0: more bytes are needed. -1: violation (p->error), or memory is out. */
int parser_next(struct parser *p, struct message *m);
void parser_free(struct parser *p);

/* Fields. A reader yields them one by one; 1: a field, 0: the end, -1: violation. */
struct field {
    u8 tag;
    u32 length;
    const u8 *value;
};
int field_next(const u8 **at, const u8 *end, struct field *f);

void put_header(u8 *at, u32 length, u8 type, u8 flags, u16 pipe, u32 stream);

/* Writers of small messages: a fixed buffer, large enough for every message that the guest builds with it. */
struct fields {
    size_t length;
    u8 data[640];
};
void field_bytes(struct fields *f, u8 tag, const void *data, size_t length); /* cut to what has room */
void field_text(struct fields *f, u8 tag, const char *text);
void field_u8(struct fields *f, u8 tag, u8 value);
void field_u32(struct fields *f, u8 tag, u32 value);
void field_u64(struct fields *f, u8 tag, u64 value);

/* Strings without stdio: appends to a NUL-terminated buffer of `size` bytes, cutting what has no room. */
void text_add(char *to, size_t size, const char *text);
void text_add_number(char *to, size_t size, u64 number);

/* Writes a FATAL frame ("STEP: WHAT: error text") to a stream that has spoken no frame halfway; waits up to a second. */
void send_fatal(int fd, const char *step, const char *what, int err);

#endif
