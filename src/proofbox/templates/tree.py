"""Digest of a directory tree: over what it holds, in one order, whatever it was made from.

One line for each entry, sorted by the bytes of its path: path, type, mode, uid, gid, size, sha256 of the content or the
link's target, device number, extended attributes, and for a further name of a file the first one. Whiteouts (devices
0:0) and opaque marks (an attribute) are thereby part of it. Times are not: two imports of the same tree have the same
digest.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from proofbox.host.idmap import find_ids
from proofbox.host.subids import run_module_inside

CAPABILITY: Final = "security.capability"
OPAQUE: Final = "user.overlay.opaque"
OVERLAY: Final = "user.overlay."
_BOOKKEEPING: Final = frozenset(f"{OVERLAY}{name}" for name in ("origin", "impure", "nlink", "uuid", "upper"))
"""What an overlay notes for itself on a layer that it writes; nothing inside can tell."""
_AT_ONCE: Final = 64
_BEGINNING: Final = 1 << 17
_LENGTHS: Final = struct.Struct("=II")
"""Of a path and of its line, which follow, where another process makes the listing."""


def walk(root: bytes) -> Iterator[tuple[bytes, os.stat_result]]:
    """Every entry below ``root`` with its path relative to it, directories before what they hold, the root as ``b""``.

    Never follows a link. Raises ``OSError`` where something cannot be read: a digest over a part would be a lie.
    """
    yield b"", os.lstat(root)
    pending = [b""]
    while pending:
        directory = pending.pop()
        with os.scandir(os.path.join(root, directory)) as entries:
            for entry in entries:
                path = os.path.join(directory, entry.name)
                found = entry.stat(follow_symlinks=False)
                yield path, found
                if stat.S_ISDIR(found.st_mode):
                    pending.append(path)


def content_digest(path: bytes) -> str:
    """sha256 of a regular file, in hex. A link in its place is refused."""
    with open(_opened_file(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _opened_file(path: bytes) -> int:
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def attributes(path: bytes) -> dict[str, bytes]:
    """The extended attributes that a layer carries, sorted: the user's, file capabilities and access lists.

    Not those of a security module of this host, and not what an overlay notes for itself. Raises ``OSError``.
    """
    found = {}
    for name in sorted(os.listxattr(path, follow_symlinks=False)):
        carried = name.startswith(("user.", "system.posix_acl_")) or name == CAPABILITY
        if carried and name not in _BOOKKEEPING:
            found[name] = os.getxattr(path, name, follow_symlinks=False)
    return found


@contextmanager
def _opened(base: bytes) -> Iterator[list[tuple[bytes, os.stat_result]]]:
    """Every entry, sorted by its path, with all of it readable: who is not root may have closed parts of its own tree
    to itself (``/etc/gshadow`` has mode 0 in some images). The modes are as they were after it.
    """
    entries, closed = [], []
    try:
        for path, found in walk(base):
            entries.append((path, found))
            mode = stat.S_IMODE(found.st_mode)
            needed = 0o500 if stat.S_ISDIR(found.st_mode) else 0o400 if stat.S_ISREG(found.st_mode) else 0
            if os.geteuid() != 0 and found.st_uid == os.geteuid() and mode & needed != needed:
                full = os.path.join(base, path)
                closed.append((full, mode))
                os.chmod(full, mode | needed)
        yield sorted(entries, key=lambda entry: entry[0])
    finally:
        for full, mode in reversed(closed):
            os.chmod(full, mode)


def seen_owner(found: os.stat_result) -> tuple[int, int]:
    """The owner as a sandbox sees it: the id of a maker that is not root is root inside."""
    return find_ids().seen_owner(found.st_uid, found.st_gid)


def is_whiteout(found: os.stat_result) -> bool:
    """Whether it says that what lies below it is gone: a character device 0:0, which any user may make."""
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def tree_digest(root: str | os.PathLike[str], *, cold: bool = False) -> str:
    """sha256 in hex of the canonical listing of everything below ``root``, the root's own mode and owner included.

    ``cold``: what the kernel remembers of the files' contents is forgotten first, as far as it is on the disk, so that
    it is read from there. Nobody may change the tree meanwhile. Raises ``OSError``; changes nothing.
    """
    total = hashlib.sha256()
    for _, line in listing(root, cold=cold):
        total.update(line)
    return total.hexdigest()


def listing(root: str | os.PathLike[str], *, cold: bool = False) -> Iterator[tuple[bytes, bytes]]:
    """Each path and its line, in their order; as ``tree_digest``."""
    base = os.fsencode(root)
    namespace = find_ids().namespace
    if namespace >= 0 and _others_own(base):
        yield from _listing_inside(namespace, base, cold)
        return
    names: dict[tuple[int, int], bytes] = {}
    with _opened(base) as entries:
        for path, found in _read_anew(base, entries) if cold else entries:
            yield path, _line(base, path, found, names)


def _read_anew(base: bytes, entries: list[tuple[bytes, os.stat_result]]) -> Iterator[tuple[bytes, os.stat_result]]:
    """The same ones. The disk is asked for the beginnings of several files at a time: most are small."""
    for at in range(0, len(entries), _AT_ONCE):
        some = entries[at : at + _AT_ONCE]
        for path, found in some:
            if stat.S_ISREG(found.st_mode):
                file = _opened_file(os.path.join(base, path))
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                os.posix_fadvise(file, 0, _BEGINNING, os.POSIX_FADV_WILLNEED)
                os.close(file)
        yield from some


def _others_own(base: bytes) -> bool:
    """Whether there is something that an id which is lent to this user may have closed to it."""
    try:
        return any(found.st_uid != os.geteuid() for _, found in walk(base))
    except PermissionError:
        return True


def _listing_inside(namespace: int, base: bytes, cold: bool) -> Iterator[tuple[bytes, bytes]]:
    """The same by a process that is root of the namespace with those ids."""
    said = run_module_inside(namespace, __name__, [os.fsdecode(base), *(["cold"] if cold else [])])
    at = 0
    while at < len(said):
        path, line = _LENGTHS.unpack_from(said, at)
        at += _LENGTHS.size
        yield said[at : at + path], said[at + path : at + path + line]
        at += path + line


def _line(base: bytes, path: bytes, found: os.stat_result, names: dict[tuple[int, int], bytes]) -> bytes:
    full = os.path.join(base, path)
    if is_whiteout(found):  # whoever made it, and whatever mode it was given: it says one thing
        return b"whiteout %d:%s\n" % (len(path), path)
    kind, size, content = stat.S_IFMT(found.st_mode), 0, b""
    if stat.S_ISREG(found.st_mode):
        first = names.setdefault((found.st_dev, found.st_ino), path) if found.st_nlink > 1 else path
        size = found.st_size
        content = content_digest(full).encode() if first == path else b"=" + first
    elif stat.S_ISLNK(found.st_mode):
        content = os.readlink(full)
    elif stat.S_ISBLK(found.st_mode) or stat.S_ISCHR(found.st_mode):
        content = f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}".encode()
    uid, gid = seen_owner(found)
    head = f"{kind:o} {stat.S_IMODE(found.st_mode):04o} {uid} {gid} {size}".encode()
    # Lengths in front of the free texts: no name can be made to look like the next field or the next line.
    texts = [path, content]
    for name, value in attributes(full).items():
        texts += [os.fsencode(name), value]
    return head + b"".join(b" %d:%s" % (len(text), text) for text in texts) + b"\n"


def _tell(root: str, cold: bool) -> None:
    """For ``_listing_inside``, on standard output."""
    for path, line in listing(root, cold=cold):
        sys.stdout.buffer.write(_LENGTHS.pack(len(path), len(line)) + path + line)


if __name__ == "__main__":
    _tell(sys.argv[1], "cold" in sys.argv[2:])
