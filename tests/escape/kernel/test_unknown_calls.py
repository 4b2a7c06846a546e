"""Every number that no call has which the filter knows: what a newer kernel added."""

from __future__ import annotations

from tests.escape.conftest import HOSTS_KERNEL, Inside

from proofbox.host.seccomp.policy import machine, numbers, policy

pytestmark = HOSTS_KERNEL

UNNAMED = {
    "numbers": """
known = set(GIVEN['known'])
found = {}
for number in [*range(0, 700), *range(1000, 1010), 1 << 20]:
    # 335 and 336 belong to probes that the host set: the kernel lets them by all filters, and ends who calls unasked.
    if number not in known and number not in (335, 336):
        try:
            found[number] = call(number, -1, -1, -1, -1, -1, -1)
        except OSError as error:
            if error.errno != errno.ENOSYS:
                found[number] = error.errno
said = found
"""
}


async def test_a_call_that_nobody_named_does_not_exist(inside: Inside) -> None:
    """It is refused before anybody has looked at it."""
    known = [number for name, number in numbers(machine()).items() if name in policy().verdicts]
    assert (await inside.outcomes(UNNAMED, known=known))["numbers"] == "{}"
