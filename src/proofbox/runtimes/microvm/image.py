"""Read-only images of directories, for virtual machines to mount: one for each template, one for a sandbox's volumes.

    HOME/machines/<64 hex>.erofs       what a template's layers hold, each in a directory of its number
    HOME/machines/<64 hex>.lock        held by whoever makes it
    HOME/machines/initramfs-<32 hex>   see ``initramfs.py``

Removed by the template store's collector with the template. A machine that has one open keeps what it holds.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from proofbox.errors import CreateFailed, Refused
from proofbox.host.home import MACHINES, data_home, locked, private_directory, workshop
from proofbox.host.layers import helper_ids
from proofbox.kit.binary import find_program, guest_path
from proofbox.kit.durable import sync_directory
from proofbox.model.template import Template

PROGRAM: Final = "mkfs.erofs"
REMEDY: Final = "apt install erofs-utils"
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

    Owners are those that a sandbox of this user sees. Blocks; raises as ``template_image``.
    """
    program = find_maker()
    try:
        with workshop(private_directory(data_home()) / "making") as place:
            stage, made = place / "stage", place / "image"
            stage.mkdir()
            _run(stage, sources, [program, "--quiet", f"-U{_UUID}", str(made), str(stage)])
            made.chmod(0o444)  # who runs the machine is another user
            with made.open("rb") as image:
                os.fsync(image.fileno())
            made.rename(path)
        sync_directory(path.parent)
    except OSError as error:
        raise CreateFailed(f"image {path}: {error}; is the file system full?", "image") from error


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
