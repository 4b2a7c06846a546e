#include "stream.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#ifndef TIOCGPTPEER
#define TIOCGPTPEER 0x5441
#endif

void pty_resize(int master, u16 rows, u16 columns)
{
    struct winsize size = {.ws_row = rows, .ws_col = columns};
    ioctl(master, TIOCSWINSZ, &size);
}

/* Where the peer is not opened through the master (gVisor of 2024): by a path over which nobody inside can mount. */
static int open_by_number(int master)
{
    unsigned number;
    char path[40] = "/dev/pts/";
    if (ioctl(master, TIOCGPTN, &number))
        return -1;
    text_add_number(path, sizeof path, number);
    return open(path, O_RDWR | O_NOCTTY | O_NOFOLLOW | O_CLOEXEC);
}

int pty_open(int *master, u16 rows, u16 columns)
{
    int fd = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC), unlock = 0;
    if (fd < 0)
        return -1;
    /* The peer is opened through the master: no path that something inside could replace. */
    int peer = ioctl(fd, TIOCSPTLCK, &unlock) ? -1 : ioctl(fd, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (peer < 0 && errno == ENOTTY)
        peer = open_by_number(fd);
    if (peer < 0) {
        int err = errno;
        close(fd);
        errno = err;
        return -1;
    }
    pty_resize(fd, rows, columns);
    *master = fd;
    return peer;
}
