"""The process of one virtual machine: QEMU, confined, as our child.

``proofbox-guest vm-enter`` (guest/vmenter.h) is the child itself: it joins the machine's control groups, makes an empty
root with nothing in it but QEMU and what it starts, and runs QEMU there as a user that owns nothing. It dies with this
process, and the kernel ends everything below it then. Nothing that QEMU is given can be opened by anybody else: the
guest's ports, QEMU's own monitor, and the disks are descriptors that it inherits.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from proofbox.errors import CreateFailed
from proofbox.kit.binary import guest_path
from proofbox.kit.child import end_within, exited
from proofbox.runtimes.microvm.qemu import Accelerator, Qemu

MIB: Final = 1 << 20
TRANSLATIONS: Final = 64 * MIB
"""Memory for emulated code. QEMU's own default is a gigabyte."""
OVERHEAD: Final = {"kvm": 64 * MIB, "tcg": 128 * MIB + TRANSLATIONS}
"""Bytes that QEMU needs beside the guest's memory, by accelerator: a bound for its group, not what it usually takes."""
OWN_TASKS: Final = 96
"""Threads and processes of its own, which count in its group: processors, I/O threads, our program's."""

PORT: Final = "proofbox"
"""With their numbers, the names of the ports inside, in /sys/class/virtio-ports/*/name."""

STOP_PATIENCE: Final = 5.0
"""Seconds that our own program has to end the machine before it is killed, which ends the machine too."""
STAGES: Final = ("/mnt", "/tmp", "/run", "/var")

KERNEL: Final = "/machine/kernel"
INITRAMFS: Final = "/machine/initramfs"


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
    machine: Literal["microvm", "q35"] = "microvm"


@dataclass(frozen=True, slots=True)
class Confined:
    """Where QEMU runs. ``groups``: the control groups' directories. ``uid``: it is that user and group.

    With ``namespace`` (``Ids.namespace``) that is an id in there; with neither, it is alone in one, as ourselves.
    """

    groups: tuple[str, ...] = ()
    uid: int = 0
    namespace: int = -1


@dataclass(slots=True, eq=False)
class Vmm:
    """A machine that was started. Every process of it is below ``process``."""

    process: subprocess.Popen[bytes]
    monitor: socket.socket

    @property
    def pid(self) -> int:
        """Of our own program, which ends last."""
        return self.process.pid

    async def exited(self) -> int:
        """Waits until all of its processes are gone; a status as of wait(2). Safe to repeat, and to cancel."""
        return await exited(self.process)

    async def stop(self) -> None:
        """Ends it, without a word to the guest, and waits until all of its processes are gone. Idempotent."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            await end_within(self.process, STOP_PATIENCE)

    def close(self) -> None:
        """Lets the descriptors go; the machine runs on. Idempotent."""
        self.monitor.close()


def start(qemu: Qemu, machine: Machine, confined: Confined, ports: Sequence[socket.socket]) -> Vmm:
    """Starts a machine with these serial ports, the guest's channel first. The caller closes them after this.

    It ends when the thread that called this does. What goes wrong from here on comes as FATAL on the channel, and so do
    the console's last words when QEMU ends by itself. Raises ``CreateFailed``; nothing is left then.
    """
    near, far = socket.socketpair()
    disks: list[int] = []
    try:
        disks.extend(_open(path, os.O_RDONLY) for path in machine.images)
        if machine.disk is not None:
            disks.append(_open(machine.disk, os.O_RDWR))
        numbers = [port.fileno() for port in ports]
        words = _enter(qemu, machine, confined, numbers[0])
        words += ["--", qemu.path, *arguments(machine, numbers, far.fileno(), disks)]
        passed = [*numbers, far.fileno(), *disks, *([confined.namespace] if confined.namespace >= 0 else [])]
        process = _spawn(words, passed)
    except BaseException:
        near.close()
        raise
    finally:
        far.close()
        for disk in disks:
            os.close(disk)
    near.setblocking(False)
    return Vmm(process, near)


def _open(path: Path, mode: int) -> int:
    try:
        return os.open(path, mode | os.O_CLOEXEC)
    except OSError as error:
        raise CreateFailed(f"disk {path} of a virtual machine: {error.strerror}", "vmm") from error


def _spawn(words: Sequence[str], passed: Sequence[int]) -> subprocess.Popen[bytes]:
    """In a session of its own: Ctrl-C is not for it."""
    nothing = subprocess.DEVNULL
    try:
        return subprocess.Popen(
            words, env={}, stdin=nothing, stdout=nothing, stderr=nothing, pass_fds=passed, start_new_session=True
        )
    except OSError as error:
        raise CreateFailed(f"start {words[0]}: {error.strerror}", "vmm") from error


def _enter(qemu: Qemu, machine: Machine, confined: Confined, channel: int) -> list[str]:
    """Our own program, and what it is to prepare: see guest/vmenter.h."""
    words = [str(guest_path()), "vm-enter", "channel", str(channel), "stage", _stage()]
    for group in confined.groups:
        words += ["group", group]
    if confined.uid:
        words += ["uid", str(confined.uid)]
    if confined.namespace >= 0:
        words += ["userns", str(confined.namespace)]
    for path in qemu.shown:
        words += ["show", path]
    for target, source in ((KERNEL, machine.kernel), (INITRAMFS, machine.initramfs)):
        words += ["at", target, "show", str(source)]
    if machine.accelerator == "kvm":
        words += ["device", "/dev/kvm"]
    return words


def _stage() -> str:
    """A directory of this host to put QEMU's root together on, in a mount namespace of its own."""
    return next((place for place in STAGES if os.path.isdir(place) and not os.path.islink(place)), "/usr")


def arguments(machine: Machine, ports: Sequence[int], monitor: int, disks: Sequence[int]) -> list[str]:
    """QEMU's. The numbers are those of descriptors that it inherits."""
    return [
        *("-nodefaults", "-no-user-config", "-nographic", "-no-reboot"),
        *("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"),
        *_platform(machine),
        *("-kernel", KERNEL, "-initrd", INITRAMFS, "-append", machine.cmdline),
        *("-serial", "stdio"),
        *("-chardev", f"socket,id=monitor,fd={monitor}", "-mon", "chardev=monitor,mode=control"),
        *("-device", f"virtio-serial-{_bus(machine)}"),
        *_ports(ports),
        *_blocks(machine, disks),
    ]


def _platform(machine: Machine) -> Iterator[str]:
    options = {"microvm": "microvm,acpi=on,graphics=off,usb=off", "q35": "q35,graphics=off,usb=off"}
    yield from ("-M", options[machine.machine])
    if machine.accelerator == "kvm":
        yield from ("-accel", "kvm", "-cpu", "host")
    else:
        # Five levels of page tables would only be slower to emulate.
        yield from ("-accel", f"tcg,tb-size={TRANSLATIONS // MIB}", "-cpu", "max,la57=off")
    yield from ("-m", f"{-(-machine.memory // MIB)}M", "-smp", str(machine.processors))


def _bus(machine: Machine) -> str:
    return "device" if machine.machine == "microvm" else "pci"


def _ports(ports: Sequence[int]) -> Iterator[str]:
    for number, port in enumerate(ports, 1):
        yield from ("-chardev", f"socket,id=port{number},fd={port}")
        yield from ("-device", f"virtserialport,chardev=port{number},nr={number},name={PORT}{number}")


def _blocks(machine: Machine, disks: Sequence[int]) -> Iterator[str]:
    """No locks on read-only images: many machines share them, and whoever cannot write needs none."""
    for number, disk in enumerate(disks):
        writable = number >= len(machine.images)
        file = {"driver": "file", "filename": f"/dev/fdset/{number}", "locking": "off"}
        node = {"driver": "raw", "node-name": f"disk{number}", "read-only": not writable, "file": file}
        if writable:
            node |= {"discard": "unmap"}
        yield from ("-add-fd", f"fd={disk},set={number}", "-blockdev", msgspec.json.encode(node).decode())
        yield from ("-device", f"virtio-blk-{_bus(machine)},drive=disk{number}")
