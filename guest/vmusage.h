/* What the sandbox of a virtual machine has used, as the machine's own kernel counts it. */
#ifndef PROOFBOX_VMUSAGE_H
#define PROOFBOX_VMUSAGE_H

#include "frame.h"

/* Where the sandbox's control group is made: the launch message names it. */
#define VM_GROUP "/cgroup/sandbox"

enum {
    VMUSAGE_OOM_KILLS = 1,
    VMUSAGE_PROCESS_DENIALS,
    VMUSAGE_PROCESSES,
    VMUSAGE_DISK,
    VMUSAGE_DISK_FREE,
    VMUSAGE_INODES_FREE,
};

/* Lets groups below the first one have controllers. Those that this kernel lacks are missed when they are written to. */
void vmusage_prepare(void);
/* Adds what can be read, each as 8 bytes; `layer` is a descriptor on the writable layer, or -1. */
void vmusage_read(int layer, struct fields *out);

#endif
