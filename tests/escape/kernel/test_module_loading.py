"""init_module, finit_module, delete_module: code of one's own in the kernel."""

from __future__ import annotations

from tests.escape.attempts import CLOSED
from tests.escape.conftest import MACHINES_TOO, Inside

pytestmark = MACHINES_TOO

ATTEMPTS = {
    "from memory": "import ctypes; call('init_module', ctypes.create_string_buffer(b'\\x7fELF' + bytes(60)), 64, b'')",
    "from a file": """
file = os.memfd_create('x')
os.write(file, b'\\x7fELF' + bytes(60))
call('finit_module', file, b'', 0)
""",
    "taken away": "call('delete_module', b'virtio_blk', 0x800)",
    "what is loaded with what": "os.listdir('/sys/module')",
}


async def test_no_module_comes_or_goes(inside: Inside) -> None:
    """By none of the calls; in a machine the kernel has those with which it started. (gVisor's list is empty.)"""
    before = (await inside.box.run("cut -d' ' -f1 /proc/modules")).stdout
    await inside.expect(ATTEMPTS, "ENOSYS", *CLOSED, gvisor={"what is loaded with what": "done"})
    if inside.host.runtime_name == "microvm":
        assert "virtio_blk" in before
        assert (await inside.box.run("cut -d' ' -f1 /proc/modules")).stdout == before
