"""A virtual machine as QEMU is told of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from proofbox.model.limits import MIB
from proofbox.runtimes.microvm.qemu import Accelerator, Board

TRANSLATIONS: Final = 64 * MIB
"""Memory for emulated code. QEMU's own default is a gigabyte."""

PORT: Final = "proofbox"
"""With their numbers, the names of the ports inside, in /sys/class/virtio-ports/*/name."""

KERNEL: Final = "/machine/kernel"
INITRAMFS: Final = "/machine/initramfs"
IMAGE: Final = "/machine/image"
"""With its number. Threat: who owns a file opens one that was inherited to be read for writing too, by its place in
/proc; where QEMU is the caller's own user, that is all who break it. Where it sees them, images are mounted read-only.
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """What to start. ``memory`` in bytes, rounded up to whole MiB.

    ``images`` are read-only block devices in their order, ``disk`` a writable one after them, all of them raw files.
    """

    kernel: Path
    initramfs: Path
    cmdline: str
    memory: int
    processors: int = 1
    images: tuple[Path, ...] = ()
    disk: Path | None = None
    accelerator: Accelerator = "tcg"
    machine: Board = "microvm"

    @property
    def whole_memory(self) -> int:
        """Bytes that it has."""
        return -(-self.memory // MIB) * MIB


@dataclass(frozen=True, slots=True)
class Inherited:
    """Descriptors that QEMU has from its start. ``disks``: of the writable ones. ``memory``: a file for the machine's
    memory, or -1.

    ``restored``: it goes on from a saved state, with that memory. ``held``: it takes one in to be saved again, and
    stands still.
    """

    ports: Sequence[int]
    monitor: int
    disks: Sequence[int]
    memory: int = -1
    restored: bool = False
    held: bool = False


def arguments(machine: Machine, inherited: Inherited) -> list[str]:
    """QEMU's, for what it inherits."""
    return [
        *("-nodefaults", "-no-user-config", "-nographic", "-no-reboot"),
        *("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"),
        *_platform(machine),
        *_beginning(machine, inherited),
        *("-serial", "stdio"),
        *("-chardev", f"socket,id=monitor,fd={inherited.monitor}", "-mon", "chardev=monitor,mode=control"),
        *("-device", f"virtio-serial-{_bus(machine)}"),
        *_ports(inherited.ports),
        *_images(machine),
        *_disks(machine, inherited.disks),
    ]


def _beginning(machine: Machine, inherited: Inherited) -> Iterator[str]:
    """What it boots, or that it is told on its monitor what to go on from; and where its memory is."""
    if inherited.memory < 0:
        yield from ("-object", f"memory-backend-ram,id=memory,size={machine.whole_memory}")
    else:
        # Restored, it may write what it has mapped, and never the file.
        share = "off" if inherited.restored and not inherited.held else "on"
        where = f"mem-path=/proc/self/fd/{inherited.memory},share={share}"
        yield from ("-object", f"memory-backend-file,id=memory,size={machine.whole_memory},{where}")
    if inherited.restored:
        yield from ("-incoming", "defer", *(("-S",) if inherited.held else ()))
    else:
        yield from ("-kernel", KERNEL, "-initrd", INITRAMFS, "-append", machine.cmdline)


def _platform(machine: Machine) -> Iterator[str]:
    options = {"microvm": "microvm,acpi=on,graphics=off,usb=off", "q35": "q35,graphics=off,usb=off"}
    yield from ("-M", options[machine.machine] + ",memory-backend=memory")
    if machine.accelerator == "kvm":
        yield from ("-accel", "kvm", "-cpu", "host")
    else:
        # Five levels of page tables would only be slower to emulate.
        yield from ("-accel", f"tcg,tb-size={TRANSLATIONS // MIB}", "-cpu", "max,la57=off")
    yield from ("-m", f"{machine.whole_memory // MIB}M", "-smp", str(machine.processors))


def _bus(machine: Machine) -> str:
    return "device" if machine.machine == "microvm" else "pci"


def _ports(ports: Sequence[int]) -> Iterator[str]:
    for number, port in enumerate(ports, 1):
        yield from ("-chardev", f"socket,id=port{number},fd={port}")
        yield from ("-device", f"virtserialport,chardev=port{number},nr={number},name={PORT}{number}")


def _images(machine: Machine) -> Iterator[str]:
    """No locks: many machines share them, and whoever cannot write needs none."""
    for number in range(len(machine.images)):
        yield from _block(machine, f"image{number}", f"{IMAGE}{number}", {"read-only": True})


def _disks(machine: Machine, disks: Sequence[int]) -> Iterator[str]:
    for number, disk in enumerate(disks):
        yield from ("-add-fd", f"fd={disk},set={number}")
        yield from _block(machine, f"disk{number}", f"/dev/fdset/{number}", {"discard": "unmap"})


def _block(machine: Machine, name: str, path: str, options: dict[str, object]) -> Iterator[str]:
    file = {"driver": "file", "filename": path, "locking": "off"}
    node = {"driver": "raw", "node-name": name, "file": file} | options
    yield from ("-blockdev", msgspec.json.encode(node).decode())
    yield from ("-device", f"virtio-blk-{_bus(machine)},drive={name}")
