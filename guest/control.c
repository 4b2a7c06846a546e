#include "control.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

bool control_write(const char *path, const char *value)
{
    ssize_t size = (ssize_t)strlen(value);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t done = write(fd, value, (size_t)size);
    int why = done < 0 ? errno : EIO;
    close(fd);
    errno = why;
    return done == size;
}
