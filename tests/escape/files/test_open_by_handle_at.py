"""Handles of files: a number without a path leads past every root (the "shocker" of 2014)."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    # The handle of the root directory of most file systems is inode 2.
    "the root of a disk": """
import ctypes
handle = ctypes.create_string_buffer(bytes.fromhex('08000000' '01000000' '02000000' '00000000'))
call('open_by_handle_at', os.open('/usr', 0), handle, 0)
""",
    "the root of the template": """
import ctypes
handle = ctypes.create_string_buffer(bytes.fromhex('08000000' '01000000' '02000000' '00000000') + bytes(120))
call('open_by_handle_at', os.open('/etc/passwd', 0), handle, 0)
""",
}


async def test_handles_of_files_cannot_be_opened(inside: Inside) -> None:
    """Whichever file they name."""
    await inside.expect(ATTEMPTS, "EPERM")
