"""The kernel that virtual machines boot: an image and its modules, as a distribution's package brings them."""

from __future__ import annotations

import lzma
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from proofbox.errors import Refused

KERNEL: Final = "PROOFBOX_KERNEL"
MODULES: Final = "PROOFBOX_KERNEL_MODULES"
NEEDED: Final = ("virtio_mmio", "virtio_pci", "virtio_console", "erofs", "overlay")
"""Drivers without which no sandbox comes up, with what they need. One that is built in is not loaded."""
LATE: Final = ("virtio_blk",)
"""Those of disks, which are loaded when a machine is told whose it is: what is saved before knows of no disk."""
DEFAULT: Final = "vmlinuz-*-cloud-amd64"
"""Small, and made for virtual machines."""
REMEDY: Final = (
    f"apt install linux-image-cloud-amd64, or without root: apt download linux-image-cloud-amd64's package, "
    f"dpkg-deb -x it into a directory, and set {KERNEL} to its boot/vmlinuz-VERSION"
)


@dataclass(frozen=True, slots=True)
class Kernel:
    """``modules`` is the directory of this version's modules."""

    image: Path
    version: str
    modules: Path

    @property
    def number(self) -> tuple[int, ...]:
        """The version to compare; empty if it is not to be understood."""
        found = re.match(r"(\d+)\.(\d+)", self.version)
        return tuple(map(int, found.groups())) if found else ()


def find_kernel(root: Path = Path("/")) -> Kernel:
    """The one that ``$PROOFBOX_KERNEL`` names, or the newest of the distribution's. Raises ``Refused`` with a remedy.

    ``root`` stands for "/" in tests.
    """
    named = os.environ.get(KERNEL)
    if named:
        return _kernel(Path(named).absolute())
    found = [each for each in (root / "boot").glob(DEFAULT) if os.access(each, os.R_OK)]
    if not found:
        raise Refused("a virtual machine", (f"no kernel {root / 'boot' / DEFAULT} that can be read ({REMEDY})",))
    return _kernel(max(found, key=_version_key))


def _kernel(image: Path) -> Kernel:
    version = image.name.removeprefix("vmlinuz-")
    if not os.access(image, os.R_OK):
        raise Refused("a virtual machine", (f"the kernel {image} cannot be read ({REMEDY})",))
    named = os.environ.get(MODULES)
    # A package's tree has usr/lib where /usr is merged, and lib where it is not.
    beside = [image.parent.parent / where / "modules" / version for where in ("lib", "usr/lib")]
    places = [Path(named).absolute()] if named else beside
    for place in places:
        if (place / "modules.builtin").is_file():
            return Kernel(image, version, place)
    raise Refused(
        "a virtual machine", (f"kernel {image} has no modules at {places[0]} (set {MODULES} to their directory)",)
    )


def _version_key(image: Path) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", image.name)]


def module_files(kernel: Kernel, names: Iterable[str] = (*NEEDED, *LATE)) -> tuple[Path, ...]:
    """The files of these modules and of what they need, each after all that it needs; none for what is built in.

    What a module needs is read from the module itself: a package that was only unpacked has no ``modules.dep``. Raises
    ``Refused`` for a module that this kernel does not have.
    """
    paths = {_name(path.name): path for path in (kernel.modules / "kernel").rglob("*.ko*")}
    built_in = {_name(line) for line in _lines(kernel.modules / "modules.builtin")}
    ordered: dict[str, Path] = {}

    def add(name: str) -> None:
        if name in built_in or name in ordered:
            return
        if name not in paths:
            raise Refused("a virtual machine", (f"kernel {kernel.version} has no module {name} in {kernel.modules}",))
        for each in _needed_by(module_bytes(paths[name])):
            add(each)
        ordered[name] = paths[name]

    for name in names:
        add(name)
    return tuple(ordered.values())


def _needed_by(module: bytes) -> list[str]:
    found = re.search(rb"\0depends=([^\0]*)\0", module)
    return [_name(each) for each in found[1].decode().split(",") if each] if found else []


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except FileNotFoundError:
        return []


def _name(path: str) -> str:
    return path.rpartition("/")[2].partition(".")[0].replace("-", "_")


def module_bytes(path: Path) -> bytes:
    """A module as the kernel loads it. Raises ``Refused`` where nothing here can unpack it."""
    if path.suffix == ".xz":
        return lzma.decompress(path.read_bytes())
    if path.suffix != ".zst":
        return path.read_bytes()
    program = shutil.which("zstd")
    if program is None:
        raise Refused("a virtual machine", (f"module {path} is compressed, and there is no zstd (apt install zstd)",))
    return subprocess.run([program, "-dcq", str(path)], check=True, capture_output=True).stdout
