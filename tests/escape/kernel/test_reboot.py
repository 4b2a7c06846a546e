"""reboot(2): the machine started again, halted, or put to sleep."""

from __future__ import annotations

from tests.escape.conftest import MACHINES_TOO, Inside

pytestmark = MACHINES_TOO

ATTEMPTS = {
    f"reboot: {name}": f"call('reboot', 0xfee1dead, 0x28121969, {number}, b'x')"
    for name, number in {
        "again": 0x1234567,
        "halt": 0xCDEF0123,
        "off": 0x4321FEDC,
        "with words": 0xA1B2C3D4,
        "into the loaded kernel": 0x45584543,
        "asleep": 0xD000FCE2,
        "by keys": 0x89ABCDEF,
    }.items()
}


async def test_the_machine_goes_on(inside: Inside) -> None:
    """And the sandbox with it."""
    await inside.expect(ATTEMPTS, "EPERM")
    assert (await inside.box.run("echo on")).stdout == "on\n"
