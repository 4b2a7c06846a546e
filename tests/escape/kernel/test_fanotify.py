"""fanotify: being told of, and asked for, whatever anybody opens on a file system."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "told": "call('fanotify_init', 0, 0)",
    "asked": "call('fanotify_init', 4, 0)",
    "told by handles": "call('fanotify_init', 0x200, 0)",
    "a mark on a file system": "call('fanotify_mark', 3, 0x101, 0x20, -100, b'/usr')",
}


async def test_nobody_is_told_what_others_open(inside: Inside) -> None:
    """Neither told nor asked."""
    await inside.expect(ATTEMPTS, "EPERM")
