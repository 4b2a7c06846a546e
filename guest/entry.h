/* What getdents64(2) fills a buffer with; libc has it under no name that both of ours share. */
#ifndef PROOFBOX_ENTRY_H
#define PROOFBOX_ENTRY_H

#include "frame.h"

struct entry { /* linux_dirent64 */
    u64 inode;
    i32 offset[2];
    u16 length;
    u8 type;
    char name[];
};

#endif
