"""File operations of the fake guest: a tree in memory, without users and links."""

from __future__ import annotations

import errno
import posixpath
import stat
from dataclasses import dataclass, field

import msgspec

from proofbox.wire import guest as wire
from proofbox.wire import tar
from proofbox.wire.frames import WireError


@dataclass(slots=True)
class _Node:
    inode: int
    data: bytes | None
    """None is a directory."""
    mode: int


@dataclass(slots=True)
class FakeFiles:
    """The tree of one sandbox. Paths are absolute or start at ``/``."""

    _nodes: dict[bytes, _Node] = field(default_factory=lambda: {b"/": _Node(1, None, 0o755)})

    def answer(self, run: wire.Run, data: bytes) -> tuple[int, bytes, bytes]:
        """Does one operation. Gives errno, the END's result, and the bytes for pipe 1 (for pipe 2 where it failed)."""
        path = posixpath.normpath(posixpath.join(run.cwd or b"/", run.path or b""))
        operation = {
            wire.READ: self._read,
            wire.WRITE: self._write,
            wire.STAT: self._stat,
            wire.LIST_DIR: self._list,
            wire.MKDIR: self._mkdir,
            wire.REMOVE: self._remove,
            wire.CHANGE: self._change,
            wire.READ_TREE: self._read_tree,
            wire.WRITE_TREE: self._write_tree,
        }.get(run.file_op or 0)
        if operation is None:
            return errno.ENOSYS, b"", b""
        try:
            result, out = operation(path, run, data)
        except OSError as error:
            return error.errno or errno.EIO, b"", error.filename or b""
        return 0, result, out

    def _find(self, path: bytes) -> _Node:
        node = self._nodes.get(path)
        if node is None:
            parent = self._nodes.get(posixpath.dirname(path))
            raise OSError(errno.ENOTDIR if parent is not None and parent.data is not None else errno.ENOENT, "")
        return node

    def _record(self, node: _Node) -> bytes:
        kind = stat.S_IFDIR if node.data is None else stat.S_IFREG
        size = 0 if node.data is None else len(node.data)
        return wire.encode_stat(wire.StatRecord(kind | node.mode, 0, 0, 1, size, node.inode, 0))

    def _read(self, path: bytes, run: wire.Run, data: bytes) -> tuple[bytes, bytes]:
        node = self._find(path)
        if node.data is None:
            raise OSError(errno.EISDIR, "")
        end = None if run.limit is None else run.offset + run.limit
        return self._record(node), node.data[run.offset : end]

    def _write(self, path: bytes, run: wire.Run, data: bytes) -> tuple[bytes, bytes]:
        if run.size is not None and run.size != len(data):
            raise OSError(errno.EIO, "")
        old = self._nodes.get(path)
        if old is not None and old.data is None:
            raise OSError(errno.EISDIR, "")
        if old is not None and run.flags & wire.EXCLUSIVE:
            raise OSError(errno.EEXIST, "")
        self._parents(path, make=bool(run.flags & wire.PARENTS))
        before = (old.data or b"") if old is not None and run.flags & wire.APPEND else b""
        mode = run.mode if run.mode is not None else old.mode if old is not None else 0o644
        node = self._nodes[path] = _Node(old.inode if old else len(self._nodes) + 1, before + data, mode)
        return self._record(node), b""

    def _parents(self, path: bytes, *, make: bool) -> None:
        parent = posixpath.dirname(path)
        if parent not in self._nodes and make:
            self._parents(parent, make=True)
            self._nodes[parent] = _Node(len(self._nodes) + 1, None, 0o755)
        if self._find(parent).data is not None:
            raise OSError(errno.ENOTDIR, "")

    def _stat(self, path: bytes, run: wire.Run, data: bytes) -> tuple[bytes, bytes]:
        return self._record(self._find(path)), b""

    def _list(self, path: bytes, run: wire.Run, data: bytes) -> tuple[bytes, bytes]:
        if self._find(path).data is not None:
            raise OSError(errno.ENOTDIR, "")
        names = [name for name in self._nodes if name != b"/" and posixpath.dirname(name) == path]
        out = b"".join(
            wire.encode_entry(
                wire.ListEntry(posixpath.basename(name), wire.decode_stat(self._record(self._nodes[name])))
            )
            for name in names[: run.limit]
        )
        return len(names[: run.limit]).to_bytes(8, "little"), out

    def _mkdir(self, path: bytes, run: wire.Run, data: bytes) -> tuple[bytes, bytes]:
        old = self._nodes.get(path)
        if old is not None and (old.data is not None or not run.flags & wire.PARENTS):
            raise OSError(errno.EEXIST, "")
        self._parents(path, make=bool(run.flags & wire.PARENTS))
        if old is None:
            old = self._nodes[path] = _Node(len(self._nodes) + 1, None, run.mode if run.mode is not None else 0o755)
        return self._record(old), b""

    def _remove(self, path: bytes, run: wire.Run, data: bytes) -> tuple[bytes, bytes]:
        self._find(path)
        below = [name for name in self._nodes if name.startswith(path.rstrip(b"/") + b"/") and name != path]
        if below and not run.flags & wire.RECURSIVE:
            raise OSError(errno.ENOTEMPTY, "")
        for name in (*below, path):
            del self._nodes[name]
        return (len(below) + 1).to_bytes(8, "little"), b""

    def _change(self, path: bytes, run: wire.Run, data: bytes) -> tuple[bytes, bytes]:
        node = self._find(path)
        node.mode = node.mode if run.mode is None else run.mode
        return self._record(node), b""

    def _read_tree(self, path: bytes, run: wire.Run, data: bytes) -> tuple[bytes, bytes]:
        if self._find(path).data is not None:
            raise OSError(errno.ENOTDIR, "")
        out, top = [], path.rstrip(b"/") + b"/"
        below = sorted(name for name in self._nodes if name.startswith(top) and name != top)
        for name in below:
            node = self._nodes[name]
            kind, content = (tar.DIRECTORY, b"") if node.data is None else (tar.FILE, node.data)
            entry = tar.Entry(type=kind, path=name.removeprefix(top), mode=node.mode, size=len(content))
            out.append(tar.header(entry) + content + tar.padding(len(content)))
        size = sum(len(self._nodes[name].data or b"") for name in below)
        return wire.encode_tree_counts(wire.TreeCounts(len(below), size, 0)), b"".join(out) + tar.CLOSING

    def _write_tree(self, path: bytes, run: wire.Run, data: bytes) -> tuple[bytes, bytes]:
        if path not in self._nodes:
            self._mkdir(path, run, b"")
        if self._find(path).data is not None:
            raise OSError(errno.ENOTDIR, "")
        decoder, found = tar.TarDecoder(), list[tuple[tar.Entry, bytes]]()
        try:
            for item in decoder.feed(data):
                found = (
                    [*found[:-1], (found[-1][0], found[-1][1] + item)]
                    if isinstance(item, bytes)
                    else [*found, (item, b"")]
                )
        except WireError as error:
            raise OSError(errno.EBADMSG, "") from error
        if not decoder.whole:
            raise OSError(errno.EBADMSG, "")
        parents = wire.Run(kind=wire.FILE, flags=wire.PARENTS)
        for entry, content in found:
            make = self._mkdir if entry.type == tar.DIRECTORY else self._write
            if entry.type not in (tar.DIRECTORY, tar.FILE):
                raise OSError(errno.EPERM, "", entry.path)
            make(posixpath.join(path, entry.path), msgspec.structs.replace(parents, mode=entry.mode), content)
        size = sum(len(content) for _, content in found)
        return wire.encode_tree_counts(wire.TreeCounts(len(found), size, 0)), b""
