"""Directories of this machine: into an archive for a sandbox, and out of one that a sandbox has written.

Everything here blocks: it runs in worker threads, a piece at a time. Going out, no link is followed and nothing outside
of the directory is read. Coming in, nothing of the archive is believed: names and links are the agent's.
"""

from __future__ import annotations

import os
import secrets
import stat
import threading
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, Literal

from proofbox.kit import newtree
from proofbox.kit.newtree import NewTree, stays_inside
from proofbox.kit.tree import remove_tree
from proofbox.wire import tar
from proofbox.wire.frames import WireError

Links = Literal["inside", "keep", "skip"]
Special = Literal["refuse", "skip"]
LINKS: Final = ("inside", "keep", "skip")
SPECIAL: Final = ("refuse", "skip")

PIECE: Final = 256 << 10
NAMED_MOST: Final = 100
"""Of what was left out, so many are named."""
DIRECTORIES_MOST: Final = 128 << 20
"""Bytes that the host remembers of one tree's directories, until all that is in them is there."""
DIRECTORY_COST: Final = 1024
"""Of each, beside its path."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FORMATS: Final = {
    tar.FILE: stat.S_IFREG,
    tar.HARD_LINK: stat.S_IFREG,
    tar.SYMLINK: stat.S_IFLNK,
    tar.DIRECTORY: stat.S_IFDIR,
}


class Unfit(ValueError):
    """A tree holds what its caller has not allowed. The message says what and which choice there is."""


class TooMuch(ValueError):
    """A tree is larger than its caller has allowed."""


@dataclass(slots=True)
class Sieve:
    """What of a tree is taken: files and directories always, links and special files by choice."""

    links: Links
    special: Special
    entries: int = 0
    size: int = 0
    left_out: int = 0
    names: list[str] = field(default_factory=list)
    """The first of those that were left out."""

    def takes_link(self, path: bytes, target: bytes) -> bool:
        """Raises ``Unfit`` for one that leads out of the tree, if those are to stay inside."""
        if self.links == "skip":
            self.leave_out(path)
            return False
        if self.links == "inside" and not stays_inside(path, target):
            raise Unfit(
                f"the link {os.fsdecode(path)!r} to {os.fsdecode(target)!r} may lead out of the tree: "
                "say links='keep' to have it as it is, or links='skip' to leave all links out"
            )
        return True

    def takes_special(self, path: bytes) -> bool:
        """Always False, if it does not raise ``Unfit``."""
        if self.special == "refuse":
            raise Unfit(
                f"{os.fsdecode(path)!r} is a device, a FIFO or a socket: say special='skip' to leave all of those out"
            )
        self.leave_out(path)
        return False

    def leave_out(self, path: bytes) -> None:
        """Counts it."""
        self.left_out += 1
        if len(self.names) < NAMED_MOST:
            self.names.append(os.fsdecode(path))


class Packing:
    """A directory as an archive. ``top`` may be a link itself: the caller has named it. ``close`` ends it."""

    def __init__(self, top: Path, sieve: Sieve) -> None:
        self._turn = threading.Lock()
        self._where = os.fsencode(top)
        self._at = b""
        self._sieve = sieve
        self._names: dict[tuple[int, int], bytes] = {}
        self._top = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._blocks = self._joined()

    def next(self) -> bytes:
        """The next piece of the archive, some hundred KiB; b"" after the last one.

        Raises ``Unfit``, and ``OSError`` with the whole path of what could not be read.
        """
        with self._turn:
            try:
                return next(self._blocks, b"")
            except OSError as error:
                where = os.path.join(self._where, self._at)
                raise OSError(error.errno, error.strerror, os.fsdecode(where)) from error

    def close(self) -> None:
        """Waits for a ``next`` that goes on in another thread. Idempotent."""
        with self._turn:
            self._blocks.close()
            if self._top >= 0:
                os.close(self._top)
            self._top = -1

    def _joined(self) -> Generator[bytes]:
        waiting: list[bytes] = []
        size = 0
        for block in self._inside(self._top, b"", 1):
            waiting.append(block)
            size += len(block)
            if size >= PIECE:
                yield b"".join(waiting)
                waiting.clear()
                size = 0
        yield b"".join(waiting) + tar.CLOSING

    def _inside(self, directory: int, prefix: bytes, depth: int) -> Iterator[bytes]:
        for name in sorted(map(os.fsencode, os.listdir(directory))):
            path = self._at = prefix + name
            if depth > tar.DEPTH_MOST or len(path) > tar.PATH_MOST:
                raise Unfit(f"{os.fsdecode(path)[:60]!r}... lies too deep: {depth} names, {len(path)} bytes")
            yield from self._entry(directory, name, path, depth)

    def _entry(self, directory: int, name: bytes, path: bytes, depth: int) -> Iterator[bytes]:
        kind = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISLNK(kind.st_mode):
            target = os.readlink(name, dir_fd=directory)
            if self._sieve.takes_link(path, target):
                yield self._header(tar.SYMLINK, path, kind, target=target)
        elif stat.S_ISDIR(kind.st_mode):
            opened = os.open(name, _DIRECTORY, dir_fd=directory)
            try:
                yield self._header(tar.DIRECTORY, path, os.fstat(opened))
                yield from self._inside(opened, path + b"/", depth + 1)
            finally:
                os.close(opened)
        elif stat.S_ISREG(kind.st_mode):
            with open(os.open(name, _FILE, dir_fd=directory), "rb", buffering=0) as file:
                yield from self._file(path, file)
        else:
            self._sieve.takes_special(path)

    def _file(self, path: bytes, file: IO[bytes]) -> Iterator[bytes]:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise Unfit(f"{os.fsdecode(path)!r} was a file when it was listed, and is none now")
        if found.st_nlink > 1:
            first = self._names.setdefault((found.st_dev, found.st_ino), path)
            if first != path:
                yield self._header(tar.HARD_LINK, path, found, target=first)
                return
        yield self._header(tar.FILE, path, found, size=found.st_size)
        left = found.st_size
        while left:
            data = file.read(min(left, PIECE))
            if not data:
                raise Unfit(f"{os.fsdecode(path)!r} became shorter while it was read")
            left -= len(data)
            yield data
        self._sieve.size += found.st_size
        yield tar.padding(found.st_size)

    def _header(self, kind: bytes, path: bytes, found: os.stat_result, *, size: int = 0, target: bytes = b"") -> bytes:
        self._sieve.entries += 1
        mode, time = stat.S_IMODE(found.st_mode), found.st_mtime_ns
        return tar.header(tar.Entry(type=kind, path=path, mode=mode, size=size, mtime_ns=time, target=target))


class Unpacking:
    """An archive of a sandbox's, into a private directory beside the final one, which takes its place in one step.

    Files and directories belong to the caller and have permission bits only, cut by the umask: a program that is
    set-user-id inside would be one of the caller's own here. ``finish`` or ``give_up`` ends it.
    """

    def __init__(self, final: Path, sieve: Sieve, *, limit: int, entries: int) -> None:
        self._final = final
        self._sieve = sieve
        self._limit = limit
        self._most = entries
        self._held = 0
        self._cut = ~_umask()
        self._turn = threading.Lock()
        self._over = False
        self._decoder = tar.TarDecoder()
        self._file: IO[bytes] | None = None
        self._entry = newtree.Entry(b"", 0, 0, 0)
        self._left = 0
        self._making = final.parent / f".proofbox-{secrets.token_hex(8)}"
        self._tree = NewTree(self._making, mode=0o700, strict=True, left_out=lambda _, path: sieve.leave_out(path))

    def feed(self, data: bytes) -> None:
        """The next bytes of the archive; nothing after ``give_up``.

        Raises ``WireError``, ``Misplaced``, ``Unfit``, ``TooMuch`` and ``OSError``.
        """
        with self._turn:
            for item in self._decoder.feed(data) if not self._over else ():
                if isinstance(item, bytes):
                    assert self._file is not None
                    self._file.write(item)
                    self._left -= len(item)
                    self._complete()
                else:
                    self._begin(item)

    def finish(self) -> None:
        """Gives the directory its name. Raises as ``feed``, and then ``give_up`` follows."""
        with self._turn:
            if self._over:
                return
            if not self._decoder.whole:
                raise WireError("tar: the archive was cut off")
            self._tree.finish()
            self._making.chmod(0o777 & self._cut)
            self._making.rename(self._final)
            self._over = True
            self._tree.close()

    def give_up(self) -> None:
        """Removes all that was made, unless it is finished. Waits for another thread that is at it. Idempotent."""
        with self._turn:
            self._over = True
            if self._file is not None:
                with suppress(OSError):
                    self._file.close()
            self._tree.close()
            remove_tree(self._making)

    def _begin(self, entry: tar.Entry) -> None:
        sieve = self._sieve
        sieve.entries += 1
        sieve.size += entry.size
        if entry.type == tar.DIRECTORY:
            self._held += DIRECTORY_COST + len(entry.path)
        if sieve.entries > self._most:
            raise TooMuch(f"more than {self._most} entries")
        if sieve.size > self._limit or self._held > DIRECTORIES_MOST:
            raise TooMuch(f"more than {self._limit} bytes of content, or more directories than can be remembered")
        if entry.type not in _FORMATS:
            sieve.takes_special(entry.path)
            return
        if entry.type == tar.SYMLINK and not sieve.takes_link(entry.path, entry.target):
            return
        made = self._made(entry)
        if entry.type != tar.FILE:
            self._tree.put(made)
            return
        self._entry, self._left = made, entry.size
        self._file = self._tree.create(made)
        self._complete()

    def _made(self, entry: tar.Entry) -> newtree.Entry:
        mode = entry.mode & 0o777 & self._cut | (0o700 if entry.type == tar.DIRECTORY else 0o600)
        return newtree.Entry(
            path=entry.path,
            mode=_FORMATS[entry.type] | mode,
            uid=0,
            gid=0,
            target=entry.target,
            hard=entry.type == tar.HARD_LINK,
            mtime=entry.mtime_ns,
        )

    def _complete(self) -> None:
        if self._file is not None and not self._left:
            file, self._file = self._file, None
            self._tree.complete(file, self._entry)


def _umask() -> int:
    """Of this process; asking for it the other way would change it for all threads."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o077
