#include "vmusage.h"

#include "control.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statfs.h>
#include <unistd.h>

void vmusage_prepare(void)
{
    static const char *const controllers[] = {"+memory", "+pids", "+cpu"};
    for (size_t i = 0; i < sizeof controllers / sizeof *controllers; i++)
        (void)control_write("/cgroup/cgroup.subtree_control", controllers[i]);
}

/* The number behind `name` in a file of lines, or its first number where there is no name. */
static void add(struct fields *out, u8 tag, const char *path, const char *name)
{
    char text[1024];
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    if (size <= 0)
        return;
    text[size] = '\0';
    for (char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        size_t length = strlen(name);
        if (strncmp(line, name, length) == 0 && (!length || line[length] == ' ')) {
            field_u64(out, tag, strtoull(line + length, NULL, 10));
            return;
        }
    }
}

void vmusage_read(int layer, struct fields *out)
{
    struct statfs space;
    add(out, VMUSAGE_OOM_KILLS, VM_GROUP "/memory.events", "oom_kill");
    add(out, VMUSAGE_PROCESS_DENIALS, VM_GROUP "/pids.events", "max");
    add(out, VMUSAGE_PROCESSES, VM_GROUP "/pids.current", "");
    if (layer < 0 || fstatfs(layer, &space) < 0)
        return;
    field_u64(out, VMUSAGE_DISK, (u64)(space.f_blocks - space.f_bfree) * (u64)space.f_bsize);
    field_u64(out, VMUSAGE_DISK_FREE, (u64)space.f_bavail * (u64)space.f_bsize);
    field_u64(out, VMUSAGE_INODES_FREE, (u64)space.f_ffree);
}
