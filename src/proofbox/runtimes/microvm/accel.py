"""Whether this host's processors run virtual machines themselves, found out by letting them run one.

That ``/dev/kvm`` can be opened proves nothing: inside other virtual machines it may be there and then fail at the first
register, or hang. So a kernel is booted, without a file beside it, until it complains of that.
"""

from __future__ import annotations

import os
import platform
import socket
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import msgspec

from proofbox.errors import CreateFailed
from proofbox.host.home import write_atomically
from proofbox.model.limits import MIB
from proofbox.runtimes.microvm import inside, vmm
from proofbox.runtimes.microvm.initramfs import NO_FILES
from proofbox.runtimes.microvm.machine import Machine
from proofbox.runtimes.microvm.qemu import Accelerator, Qemu
from proofbox.runtimes.microvm.vmm import Confined
from proofbox.wire.frames import MAX_PAYLOAD, FrameDecoder, WireError
from proofbox.wire.guest import fatal_words

DEVICE: Final = Path("/dev/kvm")
DEADLINE_S: Final = 10.0
"""A kernel that really runs on the processor is there in less than a second."""
AGAIN_S: Final = 3600.0
"""How long a machine that was too slow counts: it may have been the host that was busy."""

PANIC: Final = "Kernel panic"


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What machines are to be run with, and the evidence for it. ``about`` says of which host, ``at`` when."""

    accelerator: Accelerator
    evidence: str
    about: str = ""
    at: float = 0.0
    late: bool = False
    """It is not known: the machine was ended at the deadline."""


def _recent(verdict: Verdict) -> bool:
    """Not where the clock was set back since, either: it would be believed for as long."""
    return 0 <= time.time() - verdict.at <= AGAIN_S


async def choose(qemu: Qemu, kernel: Path, confined: Confined, cache: Path) -> Verdict:
    """The accelerator for this host: hardware only where a machine ran with it.

    Takes ``DEADLINE_S`` at most, the first time; what was found is kept in the file ``cache``, for this kernel, this
    QEMU and until the next boot. No process is left, also on cancellation.
    """
    why_not = _closed()
    if why_not:
        return Verdict("tcg", why_not)
    about = _about(qemu, kernel)
    known = _read(cache)
    if known is not None and known.about == about and not (known.late and not _recent(known)):
        return known
    found = await _prove(qemu, kernel, confined)
    found = msgspec.structs.replace(found, about=about, at=time.time())
    await anyio.to_thread.run_sync(write_atomically, cache, msgspec.json.encode(found))
    return found


def _closed() -> str:
    """Why the device is of no use to this process; empty if it can be opened."""
    try:
        os.close(os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"{DEVICE}: {error.strerror}"
    return ""


async def _prove(qemu: Qemu, kernel: Path, confined: Confined) -> Verdict:
    began = time.monotonic()
    try:
        ran, words = await boot(qemu, kernel, confined, "kvm", DEADLINE_S)
    except TimeoutError:
        return Verdict(
            "tcg", f"{DEVICE} can be opened, but a kernel did not come up within {DEADLINE_S:g} s", late=True
        )
    except CreateFailed as error:
        return Verdict("tcg", str(error))
    if not ran:
        return Verdict("tcg", f"{DEVICE} can be opened, but no kernel runs: {' '.join(words.split())}")
    return Verdict("kvm", f"a kernel was booted in {time.monotonic() - began:.2f} s")


async def boot(
    qemu: Qemu, kernel: Path, confined: Confined, accelerator: Accelerator, seconds: float
) -> tuple[bool, str]:
    """Whether a kernel comes as far as to miss its first program, and what was told last.

    Raises ``TimeoutError`` after ``seconds``, and ``CreateFailed``. No process is left then, nor on cancellation.
    """
    with tempfile.TemporaryDirectory(prefix="proofbox-") as place:
        Path(place).chmod(0o755)
        initramfs = Path(place, "initramfs")
        initramfs.write_bytes(NO_FILES)
        machine = Machine(
            kernel=kernel,
            initramfs=initramfs,
            cmdline=inside.command_line(accelerator),
            memory=128 * MIB,
            accelerator=accelerator,
            machine=qemu.board,
        )
        near, far = socket.socketpair()
        with near:
            with far:
                vm = vmm.start(qemu, machine, confined, [far])
            near.setblocking(False)
            try:
                with anyio.fail_after(seconds):
                    words = _words(await _read_all(near))
            finally:
                with anyio.CancelScope(shield=True):
                    await vm.stop()
                vm.close()
    return PANIC in words, words


async def _read_all(channel: socket.socket) -> bytes:
    told = b""
    while len(told) < MAX_PAYLOAD:
        await anyio.wait_readable(channel)
        data = channel.recv(MAX_PAYLOAD)
        if not data:
            break
        told += data
    return told


def _words(told: bytes) -> str:
    try:
        frames = FrameDecoder("guest").feed(told)
        return "".join(fatal_words(each.payload) for each in frames)
    except WireError as error:
        return str(error)


def _about(qemu: Qemu, kernel: Path) -> str:
    """All that the verdict depends on. Another user may have other rights over the device."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    facts: Sequence[object] = (platform.release(), processor(), boot_id, qemu.path, qemu.version, kernel, os.geteuid())
    return "; ".join(map(str, facts))


def processor() -> str:
    """The name of the model."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor()


def _read(cache: Path) -> Verdict | None:
    """None if there is none that makes sense: then it is found out again."""
    try:
        return msgspec.json.decode(cache.read_bytes(), type=Verdict)
    except (OSError, msgspec.DecodeError):
        return None
