"""Digest of a directory tree: over what it holds, in one order, whatever it was made from.

One line for each entry, sorted by the bytes of its path: path, type, mode, uid, gid, size, sha256 of the content or the
link's target, device number, file capabilities, and for a further name of a file the first one. Times are not part of
it: two imports of the same tree have the same digest.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator

CHUNK = 1 << 20
CAPABILITY = "security.capability"


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
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def capabilities(path: bytes) -> str:
    """File capabilities as hex, empty if there are none."""
    try:
        return os.getxattr(path, CAPABILITY, follow_symlinks=False).hex()
    except OSError:
        return ""


def seen_owner(found: os.stat_result) -> tuple[int, int]:
    """The owner as a sandbox sees it: a maker that is not root has one id only, which is root inside."""
    return (found.st_uid, found.st_gid) if os.geteuid() == 0 else (0, 0)


def tree_digest(root: str | os.PathLike[str]) -> str:
    """sha256 in hex of the canonical listing of everything below ``root``, the root's own mode and owner included.

    Nobody may change the tree meanwhile. Raises ``OSError``; changes nothing.
    """
    base = os.fsencode(root)
    names: dict[tuple[int, int], bytes] = {}
    total = hashlib.sha256()
    for path, found in sorted(walk(base), key=lambda entry: entry[0]):
        total.update(_line(base, path, found, names))
    return total.hexdigest()


def _line(base: bytes, path: bytes, found: os.stat_result, names: dict[tuple[int, int], bytes]) -> bytes:
    full = os.path.join(base, path)
    kind, size, content, caps = stat.S_IFMT(found.st_mode), 0, b"", ""
    if stat.S_ISREG(found.st_mode):
        first = names.setdefault((found.st_dev, found.st_ino), path) if found.st_nlink > 1 else path
        size, caps = found.st_size, capabilities(full)
        content = content_digest(full).encode() if first == path else b"=" + first
    elif stat.S_ISLNK(found.st_mode):
        content = os.readlink(full)
    elif stat.S_ISBLK(found.st_mode) or stat.S_ISCHR(found.st_mode):
        content = f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}".encode()
    uid, gid = seen_owner(found)
    head = f"{kind:o} {stat.S_IMODE(found.st_mode):04o} {uid} {gid} {size} {caps or '-'}".encode()
    # Lengths in front of the two free texts: no name can be made to look like the next field or the next line.
    return b"%s %d:%s %d:%s\n" % (head, len(path), path, len(content), content)
