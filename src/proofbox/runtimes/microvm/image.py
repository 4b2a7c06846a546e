"""Read-only images of directories, for virtual machines to mount: one for each template, one for a sandbox's volumes.

    HOME/machines/<64 hex>.erofs       what a template's layers hold, each in a directory of its number
    HOME/machines/<64 hex>.lock        held by whoever makes it
    HOME/machines/initramfs-<32 hex>   see ``initramfs.py``

Removed by the template store's collector with the template. A machine that has one open keeps what it holds.
"""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from proofbox.errors import CreateFailed, Refused
from proofbox.host.home import MACHINES, data_home, locked, private_directory, workshop
from proofbox.host.idmap import Ids, find_ids
from proofbox.host.layers import helper_ids
from proofbox.kit.binary import find_program, guest_path
from proofbox.kit.durable import sync_directory
from proofbox.model.template import Template

PROGRAM: Final = "mkfs.erofs"
REMEDY: Final = "apt install erofs-utils"
_NONE_SHARED: Final = "-x2147483647"
"""Each file has its attributes for itself: to find those that many share, it looks into what is to be left out too."""
_UUID: Final = "00000000-0000-0000-0000-000000000000"


def find_maker() -> str:
    """The program that makes images. Raises ``Refused`` with the remedy."""
    found = find_program(PROGRAM)
    if found is None:
        raise Refused("a virtual machine", (f"no {PROGRAM}, which makes its image of a template ({REMEDY})",))
    return found


def machines() -> Path:
    """Where images are kept; made if it is missing. Raises ``StoreFailed``."""
    return private_directory(private_directory(data_home()) / MACHINES)


def template_image(template: Template) -> Path:
    """The image of a template, made if it is not there: once, whoever else waits for it too.

    Blocks for as long as it takes to read and write all that the template holds. Raises ``CreateFailed``, ``Refused``
    without the program; nothing is left then. Safe to repeat.
    """
    path = machines() / f"{template.digest.removeprefix('sha256:')}.erofs"
    if path.exists():
        return path
    with locked(path.with_suffix(".lock")):
        if not path.exists():
            make_image(path, [layer.source for layer in template.layers])
    return path


def make_image(path: Path, sources: Sequence[str]) -> None:
    """Makes ``path``, in which each source is a directory or file of its number. It is whole, or not there.

    Owners are those that a sandbox of this user sees. What is closed to this user and all ids that are lent to it, as
    some of the host's ``/usr`` may be, is left out. Blocks; raises as ``template_image``.
    """
    program = find_maker()
    try:
        with workshop(private_directory(data_home()) / "making") as place:
            stage, made = place / "stage", place / "image"
            stage.mkdir()
            closed = [f"{number}/{path}" for number, source in enumerate(sources) for path in _closed(source)]
            without = [_NONE_SHARED, *(f"--exclude-path={path}" for path in closed)] if closed else []
            _run(stage, sources, [program, "--quiet", f"-U{_UUID}", *without, str(made), str(stage)])
            made.chmod(0o444)  # who runs the machine is another user
            with made.open("rb") as image:
                os.fsync(image.fileno())
            made.rename(path)
        sync_directory(path.parent)
    except OSError as error:
        raise CreateFailed(f"image {path}: {error}", "image") from error


def _closed(source: str) -> list[str]:
    """What of a directory nobody may look into who has our ids, by its path in there."""
    ids, found = find_ids(), list[str]()
    if os.geteuid() == 0:
        return found
    for directory, below, files in os.walk(source):
        inside = [os.path.join(directory, name) for name in (*below, *files)]
        found += [path for path in inside if _is_closed(path, ids)]
    return [os.path.relpath(path, source) for path in found]


def _is_closed(path: str, ids: Ids) -> bool:
    status = os.lstat(path)
    wanted = os.R_OK | os.X_OK if stat.S_ISDIR(status.st_mode) else os.R_OK
    looked_into = stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)
    return looked_into and not ids.has(status.st_uid) and not os.access(path, wanted, effective_ids=True)


def _run(stage: Path, sources: Sequence[str], words: Sequence[str]) -> None:
    """Runs the program where it sees the layers. The owners that root sees are those of a machine, which has all ids,
    also where root may map none, as in a container.
    """
    ids, namespace = ("all", ()) if os.geteuid() == 0 else helper_ids()
    done = subprocess.run(
        [str(guest_path()), "image-tree", str(stage), ids, *sources, "--", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        pass_fds=namespace,
        check=False,
    )
    if done.returncode:
        said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
        raise CreateFailed(f"make an image with {PROGRAM}: {said[-400:] or f'status {done.returncode}'}", "image")
