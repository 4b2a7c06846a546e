"""The part of ``proofbox.sync`` that is about files. Import it from there."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator

from anyio import to_thread

from proofbox.kit.thread import Loop
from proofbox.sandbox import files, trees
from proofbox.sandbox.fileops import Path
from proofbox.sandbox.files import FileInfo
from proofbox.sandbox.localtree import Links, Special
from proofbox.sandbox.trees import TreeInfo


class Trees:
    """See ``proofbox.sandbox.trees.Trees``."""

    def __init__(self, loop: Loop, inner: trees.Trees) -> None:
        self._loop = loop
        self._trees = inner

    def upload(
        self,
        local_dir: str | os.PathLike[str],
        path: Path,
        *,
        user: str | None = None,
        owner: str | None = None,
        parents: bool = True,
        links: Links = "inside",
        special: Special = "refuse",
    ) -> TreeInfo:
        return self._loop.call(
            self._trees.upload,
            local_dir,
            path,
            user=user,
            owner=owner,
            parents=parents,
            links=links,
            special=special,
        )

    def download(
        self,
        path: Path,
        local_dir: str | os.PathLike[str],
        *,
        user: str | None = None,
        links: Links = "inside",
        special: Special = "refuse",
        limit: int | None = None,
        entries: int | None = None,
    ) -> TreeInfo:
        return self._loop.call(
            self._trees.download,
            path,
            local_dir,
            user=user,
            links=links,
            special=special,
            limit=limit,
            entries=entries,
        )

    def read_tar(self, path: Path, *, user: str | None = None) -> Iterator[bytes]:
        pieces = self._trees.read_tar(path, user=user)
        try:
            while (piece := self._loop.call(anext, pieces, None)) is not None:
                yield piece
        finally:
            self._loop.call(pieces.aclose)

    def write_tar(
        self,
        path: Path,
        source: Iterable[bytes],
        *,
        user: str | None = None,
        owner: str | None = None,
        owners: bool = False,
        parents: bool = True,
    ) -> TreeInfo:
        return self._loop.call(
            self._trees.write_tar,
            path,
            _pieces(source),
            user=user,
            owner=owner,
            owners=owners,
            parents=parents,
        )


class Files(Trees):
    """See ``proofbox.sandbox.files.Files``."""

    def __init__(self, loop: Loop, inner: files.Files) -> None:
        super().__init__(loop, inner)
        self._inner = inner

    def read(self, path: Path, *, user: str | None = None, offset: int = 0, limit: int | None = None) -> bytes:
        return self._loop.call(self._inner.read, path, user=user, offset=offset, limit=limit)

    def read_into(
        self,
        path: Path,
        sink: Callable[[bytes], object],
        *,
        user: str | None = None,
        offset: int = 0,
        limit: int | None = None,
    ) -> int:
        async def pour(data: bytes) -> None:
            await to_thread.run_sync(sink, data)

        return self._loop.call(self._inner.read_into, path, pour, user=user, offset=offset, limit=limit)

    def write(
        self,
        path: Path,
        data: bytes | str,
        *,
        mode: int | None = None,
        owner: str | None = None,
        user: str | None = None,
        parents: bool = True,
        append: bool = False,
    ) -> FileInfo:
        return self._loop.call(
            self._inner.write, path, data, mode=mode, owner=owner, user=user, parents=parents, append=append
        )

    def write_from(
        self,
        path: Path,
        source: Iterable[bytes],
        *,
        size: int | None = None,
        mode: int | None = None,
        owner: str | None = None,
        user: str | None = None,
        parents: bool = True,
        append: bool = False,
    ) -> FileInfo:
        return self._loop.call(
            self._inner.write_from,
            path,
            _pieces(source),
            size=size,
            mode=mode,
            owner=owner,
            user=user,
            parents=parents,
            append=append,
        )

    def stat(self, path: Path, *, user: str | None = None, follow: bool = True) -> FileInfo:
        return self._loop.call(self._inner.stat, path, user=user, follow=follow)

    def list(
        self, path: Path, *, user: str | None = None, recursive: bool = False, limit: int | None = None
    ) -> list[FileInfo]:
        return self._loop.call(self._inner.list, path, user=user, recursive=recursive, limit=limit)

    def mkdir(
        self,
        path: Path,
        *,
        mode: int | None = None,
        owner: str | None = None,
        user: str | None = None,
        parents: bool = False,
    ) -> FileInfo:
        return self._loop.call(self._inner.mkdir, path, mode=mode, owner=owner, user=user, parents=parents)

    def remove(self, path: Path, *, user: str | None = None, recursive: bool = False) -> None:
        self._loop.call(self._inner.remove, path, user=user, recursive=recursive)

    def rename(self, path: Path, target: Path, *, user: str | None = None) -> FileInfo:
        return self._loop.call(self._inner.rename, path, target, user=user)

    def readlink(self, path: Path, *, user: str | None = None) -> str:
        return self._loop.call(self._inner.readlink, path, user=user)

    def symlink(self, path: Path, target: Path, *, user: str | None = None) -> FileInfo:
        return self._loop.call(self._inner.symlink, path, target, user=user)

    def chmod(
        self, path: Path, mode: int | None = None, *, owner: str | None = None, user: str | None = None
    ) -> FileInfo:
        return self._loop.call(self._inner.chmod, path, mode, owner=owner, user=user)


async def _pieces(source: Iterable[bytes]) -> AsyncIterator[bytes]:
    """The iterable, each step of it in a worker thread: it may block, and the loop serves others."""
    iterator = iter(source)
    while (piece := await to_thread.run_sync(next, iterator, None)) is not None:
        yield piece
