"""A machine without anything in it but a stock kernel: what is tested with it is the process around it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, closing
from pathlib import Path
from socket import socket, socketpair

import anyio
import pytest

from proofbox.errors import Refused
from proofbox.host.idmap import LOWEST, find_ids
from proofbox.runtimes.microvm import vmm
from proofbox.runtimes.microvm.initramfs import NO_FILES
from proofbox.runtimes.microvm.kernel import find_kernel
from proofbox.runtimes.microvm.machine import Machine
from proofbox.runtimes.microvm.qemu import Qemu, find_qemu
from proofbox.runtimes.microvm.vmm import Confined, Vmm
from proofbox.testing.needs import skip_unless_required

PATIENCE = 90.0


class Started:
    """A machine, and our end of its channel."""

    def __init__(self, vm: Vmm, channel: socket) -> None:
        self.vm = vm
        self.channel = channel

    async def last_words(self) -> str:
        """What is told on the channel until its end."""
        told = b""
        with anyio.fail_after(PATIENCE):
            while True:
                await anyio.wait_readable(self.channel)
                data = self.channel.recv(4096)
                if not data:
                    return told.decode("utf-8", "replace")
                told += data

    async def inside(self) -> int:
        """The process id of QEMU itself, once it runs."""
        found: list[int] = []

        def runs() -> bool:
            found.extend(pid for pid in _descendants(self.vm.pid) if "qemu" in _command(pid))
            return bool(found)

        await self.until(runs)
        return found[0]

    async def until(self, come: Callable[[], bool]) -> None:
        """Waits for what nobody tells of."""
        with anyio.fail_after(PATIENCE):
            while not come():  # noqa: ASYNC110 - it is read from /proc
                await anyio.sleep(0.005)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().partition("\0")[0]
    except OSError:
        return ""


def _descendants(pid: int) -> list[int]:
    try:
        found = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [*found, *(each for child in found for each in _descendants(child))]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Nothing here depends on which event loop runs."""
    return "asyncio"


@pytest.fixture(scope="session")
def qemu() -> Qemu:
    """This host's, for emulation."""
    found = find_qemu()
    if found is None:
        skip_unless_required("microvm", Refused("microvm", ("no qemu-system-x86_64 (apt install qemu-system-x86)",)))
    return found


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A kernel and no file beside it: it panics when it looks for its first program, and then stands still."""
    try:
        kernel = find_kernel()
    except Refused as refused:
        skip_unless_required("microvm", refused)
    place = tmp_path_factory.mktemp("machine")
    (place / "initramfs").write_bytes(NO_FILES)
    return Machine(kernel.image, place / "initramfs", "console=ttyS0 quiet tsc_early_khz=2600000", 128 << 20)


def confined() -> Confined:
    """As this user can."""
    ids = find_ids()
    return Confined((), LOWEST if ids.full else 1000 * ids.users, ids.namespace)


StartMachine = Callable[[Machine], Awaitable[Started]]


@pytest.fixture
async def start(qemu: Qemu) -> AsyncIterator[StartMachine]:
    """Starts machines that are ended after the test."""
    async with AsyncExitStack() as stack:

        async def started(machine: Machine) -> Started:
            near, far = socketpair()
            stack.enter_context(closing(near))
            near.setblocking(False)
            with far:
                vm = vmm.start(qemu, machine, confined(), [far])
            stack.callback(vm.close)
            stack.push_async_callback(vm.stop)
            return Started(vm, near)

        yield started
