/* Kernel interfaces that are newer than some C libraries: numbers and structures as in the kernel's uapi headers. */
#ifndef PROOFBOX_LAUNCH_SYS_H
#define PROOFBOX_LAUNCH_SYS_H

#include <stdint.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#ifndef SYS_open_tree
#define SYS_open_tree 428
#endif
#ifndef SYS_move_mount
#define SYS_move_mount 429
#endif
#ifndef SYS_fsopen
#define SYS_fsopen 430
#endif
#ifndef SYS_fsconfig
#define SYS_fsconfig 431
#endif
#ifndef SYS_fsmount
#define SYS_fsmount 432
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_clone3
#define SYS_clone3 435
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif

#define K_OPEN_TREE_CLONE 1u
#define K_OPEN_TREE_CLOEXEC 02000000u
#define K_AT_EMPTY_PATH 0x1000u
#define K_AT_RECURSIVE 0x8000u
#define K_MOVE_MOUNT_F_EMPTY_PATH 0x04u
#define K_MOVE_MOUNT_T_EMPTY_PATH 0x40u
#define K_FSOPEN_CLOEXEC 1u
#define K_FSMOUNT_CLOEXEC 1u
#define K_FSCONFIG_SET_STRING 1u
#define K_FSCONFIG_CMD_CREATE 6u
#define K_MOUNT_ATTR_RDONLY 0x01u
#define K_MOUNT_ATTR_NOSUID 0x02u
#define K_MOUNT_ATTR_NODEV 0x04u
#define K_MOUNT_ATTR_IDMAP 0x00100000u
#define K_RESOLVE_NO_MAGICLINKS 0x02u
#define K_RESOLVE_NO_SYMLINKS 0x04u
#define K_RESOLVE_IN_ROOT 0x10u
#define K_SECCOMP_SET_MODE_FILTER 1u
#define K_KEYCTL_JOIN_SESSION_KEYRING 1
#define K_SECBIT_NO_SETUID_FIXUP 4
#define K_F_OFD_SETLK 37

struct k_clone_args {
    uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};
struct k_mount_attr {
    uint64_t attr_set, attr_clr, propagation, userns_fd;
};
struct k_open_how {
    uint64_t flags, mode, resolve;
};
struct k_filter_instruction {
    uint16_t code;
    uint8_t jt, jf;
    uint32_t k;
};
struct k_filter_program {
    unsigned short len;
    const struct k_filter_instruction *filter;
};
struct k_cap_header {
    uint32_t version;
    int pid;
};
struct k_cap_data {
    uint32_t effective, permitted, inheritable;
};
#define K_CAP_VERSION_3 0x20080522u

/* Threat: the kernel shows an owner that has no id in this namespace as this number, which is also somebody's in here.
   A directory that is made to look like it must not become his: it is root's. */
enum { NOT_MAPPED = 65534 };
static inline uid_t owner_inside(uid_t shown) { return shown == NOT_MAPPED ? 0 : shown; }

#endif
