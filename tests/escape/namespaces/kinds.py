"""The kinds of namespaces, as flags of clone(2) and unshare(2)."""

from __future__ import annotations

FLAGS = {
    "mnt": 0x20000,
    "cgroup": 0x2000000,
    "uts": 0x4000000,
    "ipc": 0x8000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}
"""But for users, see ``test_nested_user_namespaces.py``."""
BORN = "child = call('clone', {} | 17, 0, 0, 0, 0)\nif child == 0: os._exit(0)\nos.waitpid(child, 0)"
"""A child with such a flag."""
