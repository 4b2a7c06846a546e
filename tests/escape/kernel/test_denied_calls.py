"""Every call that the filter names as refused, whoever makes it."""

from __future__ import annotations

import errno

from tests.escape.conftest import HOSTS_KERNEL, Inside

from proofbox.host.seccomp.policy import Rule, machine, numbers, policy

pytestmark = HOSTS_KERNEL

DENIED = {
    name: errno.errorcode[verdict]
    for name, verdict in sorted(policy().verdicts.items())
    if verdict and not isinstance(verdict, Rule) and name in numbers(machine())
}
WITHOUT_SENSE = {name: f"call({name!r}, -1, -1, -1, -1, -1)" for name in DENIED}


async def test_denied_calls_fail_with_their_error(inside: Inside) -> None:
    """Modules, kexec, reboot, bpf, perf, userfaultfd, keys, io_uring, ...: with arguments that mean nothing."""
    assert await inside.outcomes(WITHOUT_SENSE) == DENIED
