"""gVisor's sandboxes carried over with their processes: one is saved as it stands still for a moment, others go on."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import anyio

from proofbox.errors import CreateFailed
from proofbox.host.copies import copy_to_memory
from proofbox.host.home import data_home, private_directory, workshop
from proofbox.host.layers import Written
from proofbox.host.stage import stage
from proofbox.kit.binary import guest_path
from proofbox.kit.child import end_within, exited
from proofbox.model.spec import SandboxSpec
from proofbox.model.template import Template
from proofbox.model.text import one_line
from proofbox.runtime.contract import Below, Handle, Remembered
from proofbox.runtimes.oci.runtime import OciHandle, OciRuntime, handle_of

PATIENCE_S: Final = 20.0
"""Seconds for a sandbox to stand still, and to go on."""
_SAID_MOST: Final = 400


@dataclass(frozen=True, slots=True)
class Saved:
    """What runsc saved, in a directory on the disk of the template store, and a copy of what was written until then."""

    place: ExitStack
    directory: Path
    layer: Written

    def release(self) -> None:
        """See ``Remembered``."""
        self.place.close()


class Runsc(OciRuntime):
    """``OciRuntime`` with ``CanSnapshotMemory``."""

    __slots__ = ()

    async def remember(self, handle: Handle) -> Saved:
        """The sandbox stands still until all is copied. The file is as large as its memory, and lies on a disk: what
        gVisor writes is charged to the sandbox, and of a disk's file the kernel takes that back.
        """
        mine = handle_of(handle)
        if mine.spec.network != "none":
            raise _failed(mine, "it has the host's network, and its connections cannot be two")
        with ExitStack() as stack:
            try:
                directory = stack.enter_context(workshop(private_directory(data_home()) / "making"))
            except OSError as error:
                raise _failed(mine, f"{data_home()}: {error}") from error
            async with mine.saving, _still(mine):
                layer = await _saved(mine, directory)
                stack.callback(layer.release)
            return Saved(stack.pop_all(), directory, layer)

    async def create_like(
        self, spec: SandboxSpec, template: Template, remembered: Remembered, below: Sequence[Below]
    ) -> OciHandle:
        """Bundle, names, control groups, ids and channel are its own; random numbers and clock are this host's."""
        assert isinstance(remembered, Saved)  # tells the type checker; a runtime gets its own ones
        handle = await self.create_above(spec, template, below)
        handle.image = str(remembered.directory)
        return handle


async def _saved(mine: OciHandle, directory: Path) -> Written:
    """Memory and layer, while it stands still."""
    with _program(mine) as seen:
        if os.listdir(f"/proc/self/fd/{seen}/root{stage()}/layer/shm"):
            raise _failed(mine, "files in /dev/shm cannot be carried over: remove them")
    await _ask(mine, "checkpoint", "--leave-running", "--compression=none", f"--image-path={directory}")
    written = mine.written()
    layer = None if written is None else await copy_to_memory(written)
    if layer is None:
        raise _failed(mine, "what it has written is not copied: it has no limit on disk, or too little memory is free")
    return layer


@asynccontextmanager
async def _still(mine: OciHandle) -> AsyncIterator[None]:
    """While this is open nothing in it runs. Each request runs to its end, or nobody would know how it stands."""
    with anyio.CancelScope(shield=True):
        try:
            await _ask(mine, "pause", seconds=PATIENCE_S)
        except CreateFailed:
            with suppress(CreateFailed):  # it may have stopped late, or not at all
                await _ask(mine, "resume", seconds=PATIENCE_S)
            raise
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await _go_on(mine)


async def _go_on(mine: OciHandle) -> None:
    try:
        await _ask(mine, "resume", seconds=PATIENCE_S)
    except CreateFailed:
        # Nobody would be answered any more: whoever waits is to know.
        if mine.process is not None and mine.process.poll() is None:
            mine.process.terminate()
        raise


async def _ask(mine: OciHandle, *words: str, seconds: float | None = None) -> None:
    """Has the sandbox's own runsc do that. Raises ``CreateFailed`` with its words, or if it takes longer."""
    asking = mine.program.asking(stage(), mine.spec.id, *words)
    with _program(mine) as beside, tempfile.TemporaryFile() as said:
        process = _start(asking, beside, said)
        try:
            with anyio.move_on_after(seconds):
                await exited(process)
        finally:
            with anyio.CancelScope(shield=True):
                await end_within(process, 0.0)
        if process.returncode:
            said.seek(0)
            raise _failed(mine, f"runsc {words[0]}: {_first(said.read(_SAID_MOST)) or 'it did not answer in time'}")


def _start(words: Sequence[str], beside: int, said: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [guest_path(), "oci-beside", str(beside), "--", *words],
        env={},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=said,
        pass_fds=(beside,),
        start_new_session=True,
    )


def _first(said: bytes) -> str:
    """The first line, as it may be shown: names of files in it were chosen inside."""
    return one_line(said.decode("utf-8", "replace").partition("\n")[0])


@contextmanager
def _program(mine: OciHandle) -> Iterator[int]:
    """The directory in /proc of our program that made the sandbox's mounts: of that one, and never of another process
    that has its number since.
    """
    process = mine.process
    descriptor = -1
    try:
        if process is not None:
            descriptor = os.open(f"/proc/{process.pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if process is None or process.poll() is not None:
            raise _failed(mine, "it has ended")
        yield descriptor
    except OSError as error:
        raise _failed(mine, str(error)) from error
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _failed(mine: OciHandle, why: str) -> CreateFailed:
    return CreateFailed(f"sandbox {mine.id} is not carried over with its memory: {why}", "memory")
