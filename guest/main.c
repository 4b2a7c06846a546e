/* One program with several faces, chosen by its first argument. */
#include "guest.h"
#include "imagetree.h"
#include "launch.h"
#include "layers.h"
#include "ocienter.h"
#include "userns.h"
#include "vmenter.h"
#include "vminit.h"

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

/* guest FD [unisolated]: serve the protocol on an inherited descriptor. */
static int guest_face(int argc, char **argv)
{
    int fd = argc > 1 ? parse_fd(argv[1]) : -1;
    if (fd < 0)
        return 2;
    signals_default();
    guest_main(fd, argc > 2 && strcmp(argv[2], "unisolated") == 0);
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
    {"userns", userns_main},
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
