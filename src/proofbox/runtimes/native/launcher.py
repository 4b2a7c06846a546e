"""The launcher process of this client: one, started when the first sandbox is made."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import anyio

from proofbox.errors import CreateFailed
from proofbox.host.confinement import confinement
from proofbox.host.idmap import Ids
from proofbox.host.idranges import locks_file
from proofbox.host.layers import marked_by_root
from proofbox.host.seccomp.bpf import compile_filter
from proofbox.host.seccomp.policy import machine, policy
from proofbox.kit.binary import guest_path
from proofbox.kit.sealed import seal
from proofbox.runtime.messages import encode_setup

FULL_PAUSE_S: Final = 0.001
"""How long to wait when the launcher's queue is full."""
QUEUE_BYTES: Final = 1 << 20
_END_S: Final = 15.0


class Launcher:
    """The resident process that makes sandboxes. It dies with this process, and all of its sandboxes with it.

    Belongs to the process that started it: a fork of that process must start its own.
    """

    def __init__(self, ids: Ids, leftovers: Sequence[str], group_roots: Sequence[str] = ()) -> None:
        """Starts it; blocks for some milliseconds. Raises ``CreateFailed``, or ``Refused`` without a guest binary."""
        self.client = os.getpid()
        program = compile_filter(policy(), machine())
        by_root = marked_by_root(ids)
        message = encode_setup(
            self.client,
            ids,
            confinement(),
            program,
            leftovers,
            group_roots,
            root_overlays=by_root,
            id_locks=locks_file() if ids.full else None,
        )
        path = guest_path()
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far:
            passed = (far.fileno(), *(() if ids.namespace < 0 else (ids.namespace,)))
            try:
                near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, QUEUE_BYTES)
                with _program(path, ids) as (executable, held):
                    self._process = subprocess.Popen(
                        # A sandbox's first process is a clone of this one, and its arguments are seen inside.
                        ["proofbox-guest", "launcher", *map(str, passed)],
                        executable=executable,
                        cwd="/",
                        env={},
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                        pass_fds=(*passed, *held),
                        start_new_session=True,  # Ctrl-C at a terminal is for the client, which then ends it in order
                    )
                near.send(message)
            except OSError as error:
                near.close()
                raise CreateFailed(f"start the launcher {path}: {error.strerror}", "launcher") from error
        near.setblocking(False)
        self._control = near

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def usable(self) -> bool:
        """Alive, and ours."""
        return self.client == os.getpid() and self._process.poll() is None

    async def send(self, message: bytes, descriptors: Sequence[int]) -> None:
        """Asks for a sandbox; waits while the queue is full. ``CreateFailed`` if it is gone: nothing was made then."""
        while True:
            try:
                socket.send_fds(self._control, [message], descriptors)
                return
            except (BlockingIOError, InterruptedError):
                # One descriptor can be awaited by one task only, and many may be here: so each looks again by itself.
                await anyio.sleep(FULL_PAUSE_S)
            except OSError as error:
                raise CreateFailed(f"ask the launcher for a sandbox: {error.strerror}", "launcher") from error

    def abandon(self) -> None:
        """Closes our end of a launcher that is dead, or another process's. Idempotent."""
        self._control.close()

    def close(self) -> None:
        """Lets it go: it ends what is left of its sandboxes and exits. Blocks until then, at most 15 s. Idempotent."""
        self._control.close()
        if self.client != os.getpid():
            return
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # the kernel ends its sandboxes with it
            self._process.wait()


@contextmanager
def _program(path: Path, ids: Ids) -> Iterator[tuple[str, tuple[int, ...]]]:
    """What to execute, and a descriptor that it needs: the guest program, or a sealed copy of it in memory.

    A program inside can have itself executed what the guest executes (``#!/proc/self/exe``), and reaches that file by
    its own /proc/PID/exe then. Where the sandbox's only user is the caller's own, who may have installed the guest, its
    mode and attributes could be changed on the host. The copy is nobody's but the launcher's. (Writing was never
    possible: a file that is being executed cannot be written. runc does the same since CVE-2019-5736.)
    """
    if ids.full:
        yield str(path), ()
        return
    copy = os.memfd_create("proofbox-guest", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with path.open("rb") as program:
            while os.sendfile(copy, program.fileno(), None, 1 << 30):
                pass
        seal(copy)
        yield f"/proc/self/fd/{copy}", (copy,)
    finally:
        os.close(copy)
