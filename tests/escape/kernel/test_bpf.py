"""bpf(2): programs of one's own in the kernel, whose checks have had holes again and again (as CVE-2021-3490)."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "a program": """
import ctypes, struct
code = ctypes.create_string_buffer(bytes.fromhex('b700000000000000' '9500000000000000'))
name = ctypes.create_string_buffer(b'GPL')
about = struct.pack('<IIQQ', 1, 2, ctypes.addressof(code), ctypes.addressof(name)) + bytes(96)
call('bpf', 5, ctypes.create_string_buffer(about), len(about))
""",
    "a map": """
import ctypes, struct
call('bpf', 0, ctypes.create_string_buffer(struct.pack('<5I', 2, 4, 8, 1, 0)), 20)
""",
    "programs of others": "import ctypes; call('bpf', 11, ctypes.create_string_buffer(16), 12)",
    "maps of others": "import ctypes; call('bpf', 12, ctypes.create_string_buffer(16), 12)",
    "what others have put aside": "os.listdir('/sys/fs/bpf')",
    "a program at a socket": """
import ctypes, socket
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).setsockopt(socket.SOL_SOCKET, 50, (99).to_bytes(4, 'little'))
""",
}


async def test_no_program_comes_into_the_kernel(inside: Inside) -> None:
    """Nor is one found that is there."""
    await inside.expect(ATTEMPTS, "EPERM", "ENOENT", "EBADF", gvisor={"a program at a socket": "done"})
