/* File operations: they run in a child of the guest, as the command's user would, and resolve every path inside. */
#ifndef PROOFBOX_FILES_H
#define PROOFBOX_FILES_H

#include "supervisor.h"
#include "users.h"

#include <sys/stat.h>

enum { STAT_SIZE = 48, COPY_SIZE = 65536, NAME_SIZE = 32 };

/* One operation at work. Functions return 0 or an errno. */
struct operation {
    const struct run *run;
    const struct ends *ends;
    u8 *data; /* COPY_SIZE bytes to copy through */
    u8 result[STAT_SIZE];
    u32 result_length;
};

void put_stat(u8 *at, const struct stat *st);
int result_stat(struct operation *op, const struct stat *st);
void result_count(struct operation *op, u64 count);
void result_tree(struct operation *op, u64 entries, u64 bytes, u64 left_out);
int write_all(int fd, const void *data, size_t length);
int write_out(const struct operation *op, const void *data, size_t length); /* down pipe 1; ECANCELED when told to stop */
int make_parents(char *path);                      /* all directories above the last component */
int split_path(char *path, char **base, int *dir); /* opens the directory of the last component */
void random_name(char *name);                      /* NAME_SIZE bytes; nothing that anybody inside can guess */
int owner_of(const struct operation *op, struct user *owner); /* the owner that was asked for */
int cancelled(const struct operation *op);         /* the guest has gone or wants us to stop */
int is_dots(const char *name);
void raise_descriptors(void); /* deep trees need one for each level */

int file_read(struct operation *op);
int file_write(struct operation *op);
int file_list(struct operation *op);
int file_remove(struct operation *op);
int file_read_tree(struct operation *op);
int file_write_tree(struct operation *op);

#endif
