/* One program with several faces, chosen by its first argument. */
#include "frame.h"
#include "guest.h"
#include "imagetree.h"
#include "kernel.h"
#include "launch.h"
#include "layers.h"
#include "ocienter.h"
#include "userns.h"
#include "vmenter.h"
#include "vminit.h"
#include "withparent.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct face {
    const char *name;
    int (*main)(int argc, char **argv); /* argv[0] is the face's own name; the exit code */
};

/* A descriptor number in decimal, or -1. */
static int parse_fd(const char *text)
{
    int fd = 0;
    if (!*text)
        return -1;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || fd > 1000000)
            return -1;
        fd = fd * 10 + (*text - '0');
    }
    return fd;
}

/* guest FD [unisolated] [proof] [no-spare] [processes COUNT]: serve the protocol on an inherited descriptor; first find out whether
 * this kernel does what that takes; without a supervisor made while a command runs; with so many processes at most, where the kernel
 * is gVisor. What fails is told as FATAL. */
static int guest_face(int argc, char **argv)
{
    int fd = argc > 1 ? parse_fd(argv[1]) : -1, unisolated = 0;
    const char *lacks = NULL, *most = NULL;
    if (fd < 0)
        return 2;
    signals_default();
    for (int i = 2; i < argc; i++)
        if (strcmp(argv[i], "unisolated") == 0)
            unisolated = 1;
        else if (strcmp(argv[i], "proof") == 0)
            lacks = kernel_lacks();
        else if (strcmp(argv[i], "no-spare") == 0)
            spare_none();
        else if (strcmp(argv[i], "processes") == 0 && i + 1 < argc)
            most = argv[++i];
    if (lacks)
        send_fatal(fd, "the kernel inside", lacks, 0);
    else if (most && kernel_limit_processes(most))
        send_fatal(fd, "limit processes to", most, errno);
    else
        guest_main(fd, unisolated);
    return 1;
}

/* launcher FD [USERNS]: make native sandboxes, as asked for on an inherited socket; as root of that user namespace. */
static int launcher_face(int argc, char **argv)
{
    int fd = argc > 1 ? parse_fd(argv[1]) : -1;
    if (fd < 0 || (argc > 2 && userns_enter(parse_fd(argv[2])) < 0))
        return 2;
    return launcher_main(fd);
}

static const struct face faces[] = {
    {"guest", guest_face},
    {"launcher", launcher_face},
    {"oci-enter", ocienter_main},
    {"oci-beside", ocibeside_main},
    {"userns", userns_main},
    {"with-parent", withparent_main},
    {"vm-enter", vmenter_main},
    {"image-tree", imagetree_main},
    {"keep-layers", keeplayers_main},
    {"copy-layer", copylayer_main},
    {"prune-layer", prunelayer_main},
};

int main(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < sizeof faces / sizeof *faces; i++)
        if (strcmp(argv[1], faces[i].name) == 0)
            return faces[i].main(argc - 1, argv + 1);
    if (getpid() == 1 && argc > 0 && strcmp(argv[0], "/init") == 0) /* what a kernel calls its first program */
        vminit_main();
    static const char usage[] = "proofbox-guest: started by Proofbox, not by hand\n";
    (void)!write(2, usage, sizeof usage - 1);
    return 2;
}
