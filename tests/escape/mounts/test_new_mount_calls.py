"""fsopen, fspick, open_tree, move_mount, mount_setattr: the newer calls, which a filter of mount(2) does not see."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "a context of a file system": "call('fsopen', b'tmpfs', 0)",
    "a context, picked": "call('fspick', -100, b'/', 0)",
    "a tree, cloned": "call('open_tree', -100, b'/', 1)",
    "a tree, moved": "call('move_mount', -100, b'/usr', -100, b'/mnt', 0)",
    "attributes of a mount": "import ctypes; call('mount_setattr', -100, b'/', 0, ctypes.create_string_buffer(32), 32)",
}


async def test_the_newer_calls_are_refused_too(inside: Inside) -> None:
    """As the old one is."""
    await inside.expect(ATTEMPTS, "EPERM")
