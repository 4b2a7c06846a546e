"""Larger pipes, whose memory is the kernel's."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {"larger pipes": "import fcntl; fcntl.fcntl(os.pipe()[0], 1031, 1 << 30)"}


async def test_no_pipe_is_larger_than_others(inside: Inside) -> None:
    """Than the kernel lets a user have."""
    await inside.expect(ATTEMPTS, "EPERM", "EINVAL")
