/* The tar format: POSIX ustar with pax records; GNU's long names and large numbers are read too. Entries from bytes and back. */
#ifndef PROOFBOX_TAR_H
#define PROOFBOX_TAR_H

#include "frame.h"

#include <sys/types.h>

enum { TAR_BLOCK = 512, TAR_PATH = 4096, TAR_DEPTH = 256, TAR_HEADER_MOST = 10240, TAR_RECORDS = 65536 };
enum {
    TAR_FILE = '0',
    TAR_HARD_LINK = '1',
    TAR_SYMLINK = '2',
    TAR_CHARACTER = '3',
    TAR_BLOCK_DEVICE = '4',
    TAR_DIRECTORY = '5',
    TAR_FIFO = '6',
};

struct tar_entry {
    u8 type;
    u32 mode, uid, gid; /* mode: permission bits */
    u32 major, minor;
    u64 size; /* of a file; 0 for all else */
    int64_t seconds;
    u32 nanoseconds;
    char path[TAR_PATH];   /* relative, no "." and no "..", no "/" at its end; empty: the tree itself */
    char target[TAR_PATH]; /* of a hard link as a path is, of a symbolic link any text */
};

/* `read` gives bytes as read(2) does. All else starts as zeros. */
struct tar_reader {
    ssize_t (*read)(void *from, u8 *to, size_t room);
    void *from;
    size_t start, end;
    u64 left;     /* bytes of the entry's content that were not taken yet */
    u32 padding;  /* and what fills their last block */
    u8 data[65536], records[TAR_RECORDS];
};

/* 1: *entry is the next one. 0: the end of the archive. -1 with errno, and entry->path says what it is about:
 * EINVAL a path that is absolute or has "..", or a NUL; ENAMETOOLONG a path that is too long or too deep; EBADMSG no tar
 * archive, or not the whole of one; EOPNOTSUPP a kind of entry that is not a part of a tree; or what `read` said. */
int tar_next(struct tar_reader *reader, struct tar_entry *entry);

/* The next bytes of the entry's content: how many, 0 at its end, -1 with errno. */
ssize_t tar_content(struct tar_reader *reader, const u8 **data);

/* Writes the headers of an entry, whole blocks of at most TAR_HEADER_MOST bytes; how many. */
size_t tar_header(u8 *to, const struct tar_entry *entry);

#endif
