#include "launch.h"

#include <string.h>

/* A NUL follows every value, so that texts can be used where they lie. */
int item_next(const char **at, const char *end, struct item *out)
{
    if (*at == end)
        return 0;
    if (end - *at < 6)
        return -1;
    uint32_t size;
    memcpy(&size, *at + 1, 4);
    if (size >= (size_t)(end - *at) - 5)
        return -1;
    const char *value = *at + 5;
    if (value[size] != '\0')
        return -1;
    *out = (struct item){(uint8_t)**at, {value, size}};
    *at = value + size + 1;
    return 1;
}

uint64_t item_number(const struct item *item)
{
    uint64_t number = 0;
    if (item->value.size <= sizeof number)
        memcpy(&number, item->value.at, item->value.size);
    return number;
}

const char *item_second(const struct item *item)
{
    size_t first = strlen(item->value.at);
    return first < item->value.size ? item->value.at + first + 1 : NULL;
}

bool setup_read(const char *message, size_t size, struct launch_setup *out)
{
    const char *at = message + 1, *end = message + size;
    struct item item;
    int more;
    uint64_t version = 0;

    *out = (struct launch_setup){.fields = at, .fields_size = size - 1};
    while ((more = item_next(&at, end, &item)) > 0) {
        uint64_t number = item_number(&item);
        switch (item.tag) {
        case SETUP_VERSION: version = number; break;
        case SETUP_CLIENT: out->client = (uint32_t)number; break;
        case SETUP_UID: out->uid = (uint32_t)number; break;
        case SETUP_GID: out->gid = (uint32_t)number; break;
        case SETUP_FULL_IDS: out->full_ids = number != 0; break;
        case SETUP_ROOT_OVERLAYS: out->root_overlays = number != 0; break;
        case SETUP_UID_MAP: out->uid_map = item.value; break;
        case SETUP_GID_MAP: out->gid_map = item.value; break;
        case SETUP_ID_FIRST: out->id_first = (uint32_t)number; break;
        case SETUP_ID_LAST: out->id_last = (uint32_t)number; break;
        case SETUP_ID_LOCKS: out->id_locks = item.value.at; break;
        case SETUP_CAPABILITIES: out->capabilities = number; break;
        case SETUP_FILTER:
            out->filter = item.value.at;
            out->filter_size = item.value.size;
            break;
        case SETUP_MASK:
        case SETUP_READONLY:
        case SETUP_LEFTOVER:
        case SETUP_GROUP_ROOT: break;
        default: return false;
        }
    }
    out->nested_ids = out->uid_map.size && out->gid_map.size;
    return more == 0 && version == LAUNCH_VERSION && out->client && (out->full_ids || !out->root_overlays) &&
           out->filter_size >= sizeof(struct k_filter_instruction);
}

bool launch_read(const char *message, size_t size, struct launch_request *out)
{
    const char *at = message + 1, *end = message + size;
    struct item item;
    int more;

    *out = (struct launch_request){.fields = at, .fields_size = size - 1};
    while ((more = item_next(&at, end, &item)) > 0) {
        uint64_t number = item_number(&item);
        switch (item.tag) {
        case LAUNCH_ID: out->id = item.value.at; break;
        case LAUNCH_HOSTNAME: out->hostname = item.value.at; break;
        case LAUNCH_MACHINE_ID: out->machine_id = item.value.at; break;
        case LAUNCH_BOOT_ID: out->boot_id = item.value.at; break;
        case LAUNCH_HOST_NETWORK: out->host_network = number != 0; break;
        case LAUNCH_DISK: out->disk = number; break;
        case LAUNCH_INODES: out->inodes = number; break;
        case LAUNCH_PROCESSES: out->processes = (uint32_t)number; break;
        case LAUNCH_LAYER:
        case LAUNCH_VOLUME:
            if (!item_second(&item) || ++out->trees > LAUNCH_TREES_MAX)
                return false;
            break;
        case LAUNCH_GROUP: break;
        case LAUNCH_FROZEN:
        case LAUNCH_GROUP_WRITE:
            if (!item_second(&item))
                return false;
            break;
        default: return false;
        }
    }
    return more == 0 && out->id && out->hostname;
}
