"""Copies of layers: in memory, where a fork of a live sandbox starts from them, or on a disk.

They are made by a program of ours (guest/copylayer.c), as root of a user namespace: a file of mode 0, or of another
user inside, could not be read otherwise.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import anyio.to_thread

from proofbox.errors import StoreFailed
from proofbox.host.home import data_home, explained
from proofbox.host.layers import LeftOut, Written, helper_ids, keeper, takes_marks
from proofbox.host.memory import free_memory
from proofbox.kit.binary import guest_path
from proofbox.kit.child import exited

SHARE: Final = 4
"""A copy in memory takes a part of what is free that is so many times smaller at most."""
_INODE: Final = 1024
"""Bytes of the kernel's that one file costs, about."""
_SLACK_KIB: Final = 1024

Purpose = Literal["", "compare", "keep"]
"""What a copy is for: "compare" to read again what was copied and compare it with its source; "keep" that too, and to
refuse more holes than anybody would read through to digest them (16 GiB)."""

_making: list[int] = []
"""Sizes of the copies in memory that are being made in this process: not all of it has been taken yet."""


async def copy_to_memory(layer: Written) -> Written | None:
    """A copy that is stacked as the layer itself would be, and held by the caller; nobody may write to it meanwhile.

    Its memory is charged to whoever runs this process. None if there is not enough that is free, if nobody knows how
    much it would take (a sandbox without a limit on disk), or if the kernel has no use for it. Raises ``CreateFailed``,
    ``StoreFailed``; then, and when cancelled, nothing is left.
    """
    found = os.fstatvfs(layer.descriptor)
    size = (found.f_blocks - found.f_bfree) * found.f_frsize
    inodes = found.f_files - found.f_ffree
    if not found.f_blocks or not found.f_files or not takes_marks():
        return None
    with _taken(size + inodes * _INODE) as enough:
        if not enough:
            return None
        # Somewhat more than what is there: this only says that it will never become much more.
        copy = await anyio.to_thread.run_sync(_empty, (size >> 10) + _SLACK_KIB, 2 * inodes + _SLACK_KIB)
        try:
            copy.left_out = layer.left_out + await copy_layer(layer.descriptor, copy.descriptor, layer.base, "memory")
        except BaseException:
            copy.release()
            raise
    return copy


def _empty(kib: int, inodes: int) -> Written:
    return keeper().make(kib, inodes)


@contextmanager
def _taken(size: int) -> Iterator[bool]:
    """Whether there is so much; it counts as taken meanwhile."""
    if (sum(_making) + size) * SHARE > free_memory():
        yield False
        return
    _making.append(size)
    try:
        yield True
    finally:
        _making.remove(size)


async def copy_layer(source: int, target: int, base: int, where: str, purpose: Purpose = "") -> LeftOut:
    """Copies what the directory ``source`` holds into the directory ``target``, below what that holds already.

    Both are descriptors, ``where`` names the target in errors, ``base`` is as in ``Written``. Nobody may change either
    meanwhile. Raises ``StoreFailed`` with the path and the reason; then, and when cancelled, a part of it is left, for
    the caller to remove.
    """
    words = [str(source), str(target), str(base)]
    said = await _run("copy-layer", words, (source, target), where, [purpose] if purpose else [])
    sockets, attributes = map(int, said.split())
    return LeftOut(sockets, attributes)


async def prune_layer(target: Path, below: Iterable[tuple[int, str]]) -> None:
    """After several copies: removes from ``target`` what hides nothing, as an overlay would show it.

    ``below`` has the directories that each part of it, by its number, will lie over, the top one first. As
    ``copy_layer``.
    """
    words = [word for number, directory in below for word in (str(number), directory)]
    with directory(target) as into:
        await _run("prune-layer", [str(into)], (into,), str(target), words)


@contextmanager
def directory(path: Path) -> Iterator[int]:
    """A descriptor of it. Raises ``OSError``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


async def _run(face: str, words: list[str], passed: Sequence[int], where: str, more: Sequence[str]) -> bytes:
    """Runs one of our programs to its end; what it says."""
    with _start(face, words, passed, more) as process:
        try:
            status = await exited(process)
        except BaseException:
            process.kill()
            raise
        assert process.stdout is not None
        assert process.stderr is not None
        said, why = process.stdout.read(), process.stderr.read()
    if status:
        reason = why.decode(sys.getfilesystemencoding(), "replace") or f"its program ended with status {status}"
        if where.startswith(str(data_home())):  # else it is memory
            reason = explained(reason)
        raise StoreFailed(f"copy of a sandbox's layer to {where}: {reason}")
    return said


def _start(face: str, words: list[str], passed: Sequence[int], more: Sequence[str]) -> subprocess.Popen[bytes]:
    ids, namespace = helper_ids()
    try:
        return subprocess.Popen(
            [guest_path(), face, *words, ids, *more],
            env={},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(*passed, *namespace),
            start_new_session=True,
        )
    except OSError as error:
        raise StoreFailed(f"copy of a sandbox's layer: start {guest_path()}: {error.strerror}") from error
