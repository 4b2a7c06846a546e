/* The state of a sandbox as lines of text: what a start is compared by. docs/clean-start.md says what each part holds. */
#ifndef PROOFBOX_FINGERPRINT_H
#define PROOFBOX_FINGERPRINT_H

#include "files.h"

enum {
    PART_FILES = 1,
    PART_PROCESSES,
    PART_SOCKETS,
    PART_MOUNTS,
    PART_IPC,
    PART_KEYS,
    PART_USERS,
    PART_TIMERS,
    PART_ENVIRONMENT,
    PART_NETWORK,
    PART_LIMITS,
};
enum { LINE_HEADER = 3, LINE_MAX_SIZE = 16384 };

/* Lines on their way: u8 part, u16 length, that many bytes. Without a descriptor they stay, and what has no room is lost. */
struct lines {
    u8 *data;
    size_t used, size, start; /* `start`: of the line that is being written */
    int fd, err;
};

void line_begin(struct lines *l, u8 part);
void line_text(struct lines *l, const char *text); /* a space before it, unless the line is empty */
void line_bytes(struct lines *l, const void *data, size_t length); /* as they are */
void line_number(struct lines *l, const char *name, u64 number, unsigned base);
void line_end(struct lines *l);

/* One line of a file below /proc after the other, without its end; NULL after the last, when the file is closed. /proc was
 * opened before anything hostile ran. What is longer than the room for a line comes in parts. */
struct reader {
    int fd, over;
    size_t start, end;
    char data[4096 + 1];
};
int reader_open(struct reader *r, const char *path);
char *reader_next(struct reader *r);
char *next_word(char **line); /* an empty one at its end */

typedef void take_name(struct lines *l, const char *name);
void each_name(struct lines *l, int fd, take_name *take); /* of a directory; not of `.` and `..` */
void line_copy(struct lines *l, u8 part, const char *path, int skip, const char *name); /* a file of /proc after `skip` lines */

/* The cheap form: a tenth of a millisecond, no walk, no child. */
void fingerprint_cheap(struct lines *l);

/* fingerprint_files.c: every file but those of /proc and below `skip`. Times before `since` (ns) are told, later ones not. */
void fingerprint_files(struct lines *l, u64 since, char *const *skip);

/* sha256.c */
struct sha256 {
    u32 state[8];
    u64 length;
    u8 block[64];
};
void sha256_begin(struct sha256 *s);
void sha256_add(struct sha256 *s, const u8 *data, size_t length);
void sha256_end(struct sha256 *s, u8 digest[32]);

int file_fingerprint(struct operation *op);

#endif
