"""Inheriting the channel to the host: a descriptor that was left open for a command."""

from __future__ import annotations

from tests.escape.conftest import Inside

SEARCH = {
    "inherited": "said = sorted(set(os.listdir('/proc/self/fd')) - {'0', '1', '2'})",
    "sockets of ours": """
links = [os.readlink(f'/proc/self/fd/{fd}') for fd in range(64) if os.path.lexists(f'/proc/self/fd/{fd}')]
said = [link for link in links if link.startswith('socket')]
""",
}


async def test_the_channel_is_not_inherited(inside: Inside) -> None:
    """A command has its standard descriptors, and no socket."""
    told = await inside.outcomes(SEARCH, inside.box)
    assert told.pop("inherited").count(",") <= 1  # the pipe of the attempt, and the listing of the directory
    assert set(told.values()) == {"[]"}
