"""The first file system of a virtual machine: the guest program as its init, and the kernel's drivers. Nothing else."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from proofbox.host.home import write_atomically
from proofbox.kit.binary import guest_path
from proofbox.runtimes.microvm.kernel import NEEDED, Kernel, module_bytes, module_files

VERSION: Final = 2
_DIRECTORY: Final = 0o040755
_PROGRAM: Final = 0o100755
_FILE: Final = 0o100644


def make_initramfs(kernel: Kernel, directory: Path) -> Path:
    """The file of it for this kernel and this guest, about a megabyte, made if it is not there.

    Blocks for some milliseconds, the first time for about 0.1 s. Raises ``Refused`` as ``module_files``, ``OSError``.
    Safe to repeat and beside others who make the same.
    """
    guest = guest_path()
    about = [f"{VERSION} {kernel.version}"]
    parts = (kernel.image, kernel.modules, guest)
    about += [f"{path} {found.st_size} {found.st_mtime_ns}" for path in parts for found in (path.stat(),)]
    digest = hashlib.sha256("\n".join(about).encode()).hexdigest()
    path = directory / f"initramfs-{digest[:32]}"
    if not path.exists():
        early = module_files(kernel, NEEDED)
        late = [each for each in module_files(kernel) if each not in early]
        modules = {f"{number:02d}.ko": module_bytes(each) for number, each in enumerate(early)}
        modules |= {f"late{number:02d}.ko": module_bytes(each) for number, each in enumerate(late)}
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, b"".join(_archive(guest.read_bytes(), modules)))
    return path


def _archive(guest: bytes, modules: dict[str, bytes]) -> Iterator[bytes]:
    """The form is the kernel's own: "newc" of cpio, whose entries are padded to four bytes."""
    entries = [("modules", _DIRECTORY, b""), ("init", _PROGRAM, guest)]
    entries += [(f"modules/{name}", _FILE, module) for name, module in modules.items()]
    for inode, (name, mode, content) in enumerate(entries, 1):
        yield from _entry(inode, name, mode, content)
    yield NO_FILES


def _entry(inode: int, name: str, mode: int, content: bytes) -> Iterator[bytes]:
    links = 2 if mode == _DIRECTORY else 1
    numbers = (inode, mode, 0, 0, links, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08X" % number for number in numbers) + os.fsencode(name) + b"\0"
    yield head + bytes(-len(head) % 4)
    yield content + bytes(-len(content) % 4)


NO_FILES: Final = b"".join(_entry(0, "TRAILER!!!", 0, b""))
"""The end of an archive, which is an archive of no files."""
