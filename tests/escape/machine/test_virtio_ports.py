"""The ports of a machine: who writes to them speaks to the host in the name of the guest, or of the machine's init."""

from __future__ import annotations

from tests.escape.conftest import AT_MACHINES, Inside

pytestmark = AT_MACHINES

ATTEMPTS = {
    **{
        f"/dev/vport{device}p{port}": f"os.open('/dev/vport{device}p{port}', os.O_RDWR)"
        for device in range(3)
        for port in range(4)
    },
    "by its name": "os.open('/dev/virtio-ports/proofbox1', os.O_RDWR)",
    "as the console": "os.open('/dev/hvc0', os.O_RDWR)",
    "as the kernel sees it": "os.listdir('/sys/class/virtio-ports')",
    "by the bus": "os.listdir('/sys/bus/virtio/devices')",
    "by the driver's files": "os.listdir('/sys/kernel/debug/virtio-ports')",
}


async def test_no_port_is_there(inside: Inside) -> None:
    """Neither the guest's channel nor the one to init, by any name."""
    await inside.expect(ATTEMPTS, "ENOENT", "EACCES")


HELD = """
said = []
for pid in [*others(), os.getpid()]:
    try:
        links = [os.readlink(f'/proc/{pid}/fd/{fd}') for fd in os.listdir(f'/proc/{pid}/fd')]
        said += [link for link in links if 'vport' in link]
    except OSError:
        pass
"""


async def test_nobody_holds_a_port_where_it_can_be_taken(inside: Inside) -> None:
    """No descriptor of one is inherited, nor seen in another process."""
    assert await inside.outcomes({"held": HELD}) == {"held": "[]"}
