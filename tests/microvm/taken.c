/* What somebody does who has taken over the monitor of a machine: tries to write every file that it was given. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int attempt(const char *path)
{
    int file = open(path, O_RDWR);
    if (file < 0) {
        chmod(path, 0666);
        file = open(path, O_RDWR);
    }
    return file >= 0 && pwrite(file, "taken", 5, 0) == 5;
}

int main(void)
{
    char path[64];
    int written = attempt("/machine/image0");
    for (int file = 0; file < 256; file++) {
        struct stat found;
        if (fstat(file, &found) < 0 || !S_ISREG(found.st_mode))
            continue;
        fchmod(file, 0666);
        snprintf(path, sizeof path, "/proc/self/fd/%d", file);
        written += attempt(path);
    }
    int image = open("/machine/image0", O_RDONLY);
    fchmod(image, 0666);
    printf("read: %d, written: %d\n", image >= 0, written);
    fflush(stdout);
    return 1;
}
