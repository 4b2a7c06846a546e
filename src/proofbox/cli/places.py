"""The two directories where everything is kept, tried: can they be written, and do files keep their owners inside."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

from proofbox.errors import ProofboxError, StoreFailed
from proofbox.host.home import data_home, private_directory
from proofbox.host.idmap import find_ids
from proofbox.host.owner import state_dir
from proofbox.model.limits import Limits
from proofbox.model.spec import SandboxSpec
from proofbox.model.template import Layer, Template
from proofbox.runtime import registry
from proofbox.runtime.contract import CanObserve, Missing, Runtime

ROOM: Final = 65_536
"""Bytes for which there must be room: a full disk is told, not a small one."""


def _home() -> Path:
    return private_directory(data_home())


def written() -> list[Missing]:
    """What keeps them from being written. Tried with a file that has no name, so that nothing is left."""
    found = []
    for name, place in (("PROOFBOX_STATE", state_dir), ("PROOFBOX_HOME", _home)):
        try:
            with tempfile.TemporaryFile(dir=place()) as file:
                file.write(bytes(ROOM))
                file.flush()
                os.fsync(file.fileno())
        except StoreFailed as failed:
            what, _, remedy = str(failed).rpartition("; ")
            found.append(Missing(what, remedy))
        except OSError as error:
            why = f"{name} cannot be used: {error.strerror} on writing {ROOM} bytes to {place()}"
            found.append(Missing(why, f"free some space there, or set {name} to a directory elsewhere"))
    return found


async def owned() -> list[Missing]:
    """Whether a template's files keep their owners, as far as that needs the file system's help: where each sandbox has
    ids of its own. Tried with an empty sandbox of ``native``; nothing is left. Empty if none can be made.
    """
    if os.geteuid() != 0 or not find_ids().full:
        return []
    try:
        native = registry.runtime("native")
        with tempfile.TemporaryDirectory(dir=_home()) as place:
            kept = await _owner_kept(native, Path(place))
    except (ProofboxError, OSError):
        return []  # said elsewhere, and with its reason
    if kept:
        return []
    what = f"{_home()} is on a file system that maps no ids: inside, the files of templates are nobody's"
    return [Missing(what, "set PROOFBOX_HOME to a directory on ext4, xfs, btrfs or, since Linux 6.3, tmpfs")]


async def _owner_kept(native: Runtime, place: Path) -> bool:
    """Our file, seen from outside in the sandbox's root, belongs to the sandbox's root and no longer to us."""
    place.chmod(0o755)
    (place / "file").touch()
    spec = SandboxSpec(id=f"doctor-{os.urandom(4).hex()}", template="doctor", limits=Limits(disk=1 << 20, inodes=64))
    template = Template(digest="", name="doctor", layers=(Layer("/", str(place)),), env={})
    handle = await native.create(spec, template)
    try:
        pids, _ = native.observe(handle) if isinstance(native, CanObserve) else ((), None)
        return not pids or os.stat(f"/proc/{pids[0]}/root/file").st_uid != os.geteuid()
    finally:
        await native.destroy(handle)
