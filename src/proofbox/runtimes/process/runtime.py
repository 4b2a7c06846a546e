"""The guest as an ordinary process of the same user, in a session and a directory of its own. It isolates nothing.

What runs in it sees the host's files, processes and network, and can do all that the caller can. Of a template it takes
the environment and nothing else; relative paths start in a directory of the sandbox's own, which is removed with it.
When the maker dies, its end of the channel closes, and the guest kills the trees of its commands and exits.
"""

from __future__ import annotations

import errno
import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from proofbox.errors import CreateFailed, Refused
from proofbox.host.owner import Owner
from proofbox.host.remedies import explain
from proofbox.host.room import Takes
from proofbox.host.threads import descendants
from proofbox.kit.binary import guest_path
from proofbox.kit.child import end_within, exited
from proofbox.kit.tree import remove_tree
from proofbox.model.outcome import Usage
from proofbox.model.spec import Level, SandboxSpec
from proofbox.model.template import Template
from proofbox.runtime.contract import Ended, Handle, Missing, Probe

PREFIX: Final = "process-"
STOP_GRACE: Final = 2.0
"""Seconds that the guest has to end the trees of its commands after its channel was closed."""


@dataclass(slots=True, eq=False)
class ProcessHandle:
    """One guest. ``cwd`` is where its relative paths start."""

    id: str
    directory: Path
    cwd: str
    near: socket.socket
    """Kept after ``connect`` to shut the channel down from here; the caller has a descriptor of its own then."""
    far: socket.socket | None
    process: subprocess.Popen[bytes] | None = None
    connected: bool = False
    asked: bool = False


class ProcessRuntime:
    """See the module. Not for code that a model wrote: the registry refuses it unless told ``allow_unisolated``."""

    name = "process"
    level: Level = "none"

    def __init__(self, owner: Owner) -> None:
        self._owner = owner

    async def probe(self) -> Probe:
        """Usable wherever the guest was built, and runs."""
        missing: tuple[Missing, ...] = ()
        try:
            # Without arguments it says how it is started, and ends.
            await anyio.run_process([str(guest_path())], check=False)
        except Refused as refused:
            missing = tuple(map(Missing.of, refused.missing))
        except OSError as error:
            missing = (Missing(*explain(f"start {guest_path()}: {error.strerror}")),)
        return Probe(
            usable=not missing,
            level="none",
            enforces=frozenset({"wall", "idle", "command_wall", "output", "open_files", "process_memory"}),
            networks=frozenset({"none", "host"}),
            users=os.geteuid() == 0,
            missing=missing,
            notes=("no isolation: the host's files, processes and network are all in reach, whatever the spec says",),
            facts={"kernel": platform.release()},
            takes=Takes(tasks=1, all_files=24, namespaces=(), memory=512 << 10),
        )

    async def create(self, spec: SandboxSpec, template: Template) -> ProcessHandle:
        """Its directory and its channel."""
        if spec.volumes:
            raise CreateFailed(
                f"sandbox {spec.id}: the process runtime has no mounts, so no volume {spec.volumes[0].target!r}; "
                "use its path on the host",
                "volumes",
            )
        directory = self._owner.dir / f"{PREFIX}{spec.id}"
        try:
            directory.mkdir(mode=0o711)
        except OSError as error:
            raise CreateFailed(f"sandbox {spec.id}: mkdir {directory}: {error.strerror}", "directory") from error
        work = directory / "work"
        try:
            work.mkdir()
            work.chmod(0o1777)  # commands of every user start here
            near, far = socket.socketpair()
        except OSError as error:
            shutil.rmtree(directory)
            raise CreateFailed(
                f"sandbox {spec.id}: {error.strerror} while making its directory", "directory"
            ) from error
        near.setblocking(False)
        return ProcessHandle(spec.id, directory, str(work), near, far)

    async def start(self, handle: Handle) -> None:
        """Starts the guest; the guest waits for the first message."""
        mine = _of(handle)
        if mine.far is None or mine.process is not None:
            raise CreateFailed(f"sandbox {mine.id} cannot be started twice", "start")
        far = mine.far
        try:
            mine.process = subprocess.Popen(  # noqa: ASYNC220 - a vfork and an exec, about a millisecond
                [guest_path(), "guest", str(far.fileno())],
                cwd=mine.cwd,
                env={},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(far.fileno(),),
                start_new_session=True,
            )
        except OSError as error:
            raise CreateFailed(f"sandbox {mine.id}: start {guest_path()}: {error.strerror}", "start") from error
        finally:
            mine.far = None
            far.close()

    async def connect(self, handle: Handle) -> socket.socket:
        """The near end of the socket pair."""
        mine = _of(handle)
        if mine.connected:
            raise CreateFailed(f"sandbox {mine.id} cannot be connected twice", "connect")
        mine.connected = True
        return mine.near.dup()

    async def wait(self, handle: Handle) -> Ended:
        """Until the guest has exited."""
        mine = _of(handle)
        if mine.process is None:
            return Ended(None, oom=False, asked=mine.asked)
        return Ended(await exited(mine.process), oom=False, asked=mine.asked)

    async def usage(self, handle: Handle) -> Usage:
        """Nothing: there is no counter for a process and its descendants without a cgroup."""
        return Usage()

    def observe(self, handle: Handle) -> tuple[Sequence[int], Usage]:
        """The guest and what descends from it; no counters."""
        process = _of(handle).process
        if process is None or process.returncode is not None:
            return (), Usage()
        return descendants(process.pid), Usage()

    async def stop(self, handle: Handle) -> None:
        """Shuts the channel down, so that the guest ends its trees and exits; two seconds later the guest is killed."""
        mine = _of(handle)
        mine.asked = True
        if mine.far is not None:
            mine.far.close()
            mine.far = None
        try:
            mine.near.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            if error.errno not in (errno.ENOTCONN, errno.EBADF):
                raise
        mine.near.close()
        process = mine.process
        if process is None:
            return
        await end_within(process, STOP_GRACE)

    async def destroy(self, handle: Handle) -> None:
        """Ends it and removes its directory."""
        await self.stop(handle)
        await anyio.to_thread.run_sync(remove_tree, _of(handle).directory)

    async def adopt(self, owner: Owner) -> tuple[Handle, ...]:
        """None: a guest ends with its owner."""
        return ()

    async def sweep(self, owner: Owner) -> int:
        """Removes the directories of a dead owner's sandboxes."""
        found = list(owner.dir.glob(f"{PREFIX}*"))
        for directory in found:
            await anyio.to_thread.run_sync(remove_tree, directory)
        return len(found)

    async def close(self) -> None:
        """It has no process of its own."""


def _of(handle: Handle) -> ProcessHandle:
    assert isinstance(handle, ProcessHandle)
    return handle
