"""The processor's other ABIs, 32-bit and x32, whose numbers mean other calls to a filter that does not look."""

from __future__ import annotations

import pytest
from tests.escape.attempts import CODE
from tests.escape.conftest import Inside

from proofbox.host.seccomp.policy import machine

ATTEMPTS = {
    # mov eax, 20; int 0x80; movsxd rax, eax; ret
    "the processor's old gate, getpid": CODE + "run(bytes.fromhex('b814000000cd804863c0c3'))",
    # the same with 21, mount
    "the processor's old gate, mount": CODE + "run(bytes.fromhex('b815000000cd804863c0c3'))",
    "numbers of x32, getpid": "call(0x40000000 + 39)",
    "numbers of x32, mount": "call(0x40000000 + 165, b'none', b'/mnt', b'tmpfs', 0, 0)",
    "numbers of x32, ptrace": "call(0x40000000 + 521, 16, 1, 0, 0)",
}


@pytest.mark.skipif(machine() != "x86_64", reason="only this machine has two other ABIs")
async def test_the_machines_other_abis_are_closed(inside: Inside) -> None:
    """By each gate."""
    await inside.expect(ATTEMPTS, "ENOSYS", "signal 11", "signal 31")
