"""/dev/null and the few others that are there: the host's own, in other sandboxes too."""

from __future__ import annotations

from tests.escape.conftest import HOSTS_KERNEL, Inside

ATTEMPTS = {
    "the mode of a device": "os.chmod('/dev/null', 0o600)",
    "the owner of a device": "os.chown('/dev/zero', 0, 0)",
    "a device, gone": "os.unlink('/dev/null')",
    "a device, replaced": "open(f'/tmp/f{os.getuid()}', 'w').close(); os.rename(f'/tmp/f{os.getuid()}', '/dev/zero')",
    "attributes of a device": "os.setxattr('/dev/null', 'user.mine', b'1')",
}
GVISOR = dict.fromkeys(("the mode of a device", "the owner of a device", "a device, gone"), "done")


async def test_the_devices_that_are_there_stay_as_they_are(inside: Inside) -> None:
    """Their modes, owners and names. (Those of gVisor are the sandbox's own.)"""
    await inside.expect(ATTEMPTS, "EPERM", "EACCES", "EBUSY", "EXDEV", gvisor=GVISOR)


OWNERS = """
import os
for name in ('null', 'zero', 'full', 'random', 'urandom', 'tty'):
    print(os.stat('/dev/' + name).st_uid)
"""


@HOSTS_KERNEL
async def test_no_device_of_the_host_is_given_to_the_sandbox(inside: Inside) -> None:
    """crun makes its container the owner of its standard descriptors: once that was the host's /dev/null."""
    async with inside.open_box() as box:
        owners = (await box.run(["python3", "-I", "-S", "-c", OWNERS])).stdout.split()
    assert set(owners) == {"65534"}  # nobody whom the sandbox could be
