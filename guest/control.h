/* The kernel's control files: in /proc, and of control groups. */
#ifndef PROOFBOX_CONTROL_H
#define PROOFBOX_CONTROL_H

#include <stdbool.h>

/* With one write(2): such a file takes a value whole or not at all. False with errno. */
bool control_write(const char *path, const char *value);

#endif
