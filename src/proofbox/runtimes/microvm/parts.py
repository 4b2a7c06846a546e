"""What this host starts virtual machines from: QEMU, a kernel, a program that makes images, an accelerator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from proofbox.errors import Refused
from proofbox.host.idmap import HIGHEST, find_ids
from proofbox.runtimes.microvm import accel
from proofbox.runtimes.microvm.image import find_maker, machines
from proofbox.runtimes.microvm.kernel import Kernel, find_kernel, module_files
from proofbox.runtimes.microvm.qemu import Accelerator, Qemu, find_qemu
from proofbox.runtimes.microvm.vmm import Confined

NO_QEMU: Final = "no qemu-system-x86_64 on a host of that architecture (apt install qemu-system-x86)"
TAKES_MARKS: Final = (6, 6)
"""The first Linux whose file system in memory takes what an overlay needs: see ``host.layers.NO_MARKS``."""
LENT_USER: Final = 65_533
"""Of the ids that a host lends its user, the one that machines run as: nothing of a template's is to belong to it."""


@dataclass(frozen=True, slots=True)
class Found:
    """What can be found without running a machine."""

    qemu: Qemu
    kernel: Kernel

    @property
    def files(self) -> tuple[str, ...]:
        """What a machine is made of on this host, for who wants to know when it changes."""
        return (*self.qemu.shown, str(self.kernel.image), str(self.kernel.modules), str(accel.DEVICE))


@dataclass(frozen=True, slots=True)
class Parts:
    """All of them."""

    qemu: Qemu
    kernel: Kernel
    accelerator: Accelerator
    evidence: str
    """For the accelerator: what a machine that was tried with hardware support did, or why none was tried."""

    @property
    def takes_marks(self) -> bool:
        """Overlays in the machine can mark directories as those of a sandbox do."""
        return self.kernel.number >= TAKES_MARKS

    @property
    def marked_by_root(self) -> bool:
        """They are mounted by the machine's root instead: where layers in the store have root's marks too, as ours do
        if we are root.
        """
        return not self.takes_marks and find_ids().full


async def find_parts(found: Found) -> Parts:
    """All of them, with the accelerator. The first time after a boot it runs a kernel for some seconds at most, see
    ``accel.choose``.
    """
    qemu, kernel = found.qemu, found.kernel
    verdict = await accel.choose(qemu, kernel.image, confined((), HIGHEST), machines() / "accelerator.json")
    return Parts(qemu, kernel, verdict.accelerator, verdict.evidence)


def confined(groups: Sequence[str], base: int) -> Confined:
    """Where a machine runs, as far as this user may choose: in these groups, as the user ``base`` of the host."""
    ids = find_ids()
    if ids.full:
        return Confined(tuple(groups), base)
    return Confined(tuple(groups), LENT_USER if ids.namespace >= 0 else 0, ids.namespace)


def find() -> Found:
    """Looks on this host. Raises ``Refused`` with an item for each that is missing.

    Runs some programs for some milliseconds: use a thread.
    """
    missing: list[str] = []
    qemu = find_qemu()
    if qemu is None:
        missing.append(NO_QEMU)
    kernel: Kernel | None = None
    try:
        kernel = find_kernel()
        module_files(kernel)
    except Refused as refused:
        missing += refused.missing
    try:
        find_maker()
    except Refused as refused:
        missing += refused.missing
    if qemu is None or kernel is None or missing:
        raise Refused("a virtual machine", tuple(missing))
    return Found(qemu, kernel)
