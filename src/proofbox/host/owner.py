"""Who made it: one record for each process that makes sandboxes, written before it makes the first one.

Everything that can outlive a ``kill -9`` (cgroups, directories) carries the owner's id in its name. The owner holds a
lock on its record as long as it lives, and the kernel drops the lock with the last of its descriptors: an owner whose
lock can be taken is dead, and what carries its id may be removed. No process id is ever trusted for that.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

from proofbox.errors import StoreFailed


def state_dir() -> Path:
    """Where live state is kept: ``$PROOFBOX_STATE``, ``/run/proofbox`` for root, else below ``$XDG_RUNTIME_DIR`` or ``/tmp``.

    Made with mode 0711 if it is missing. Raises ``StoreFailed`` if somebody else owns it (``/tmp`` is shared by all users).
    """
    uid = os.geteuid()
    named = os.environ.get("PROOFBOX_STATE")
    if named:
        path = Path(named)
    elif uid == 0:
        path = Path("/run/proofbox")
    elif runtime := os.environ.get("XDG_RUNTIME_DIR"):
        path = Path(runtime) / "proofbox"
    else:
        path = Path(f"/tmp/proofbox-{uid}")
    path.mkdir(mode=0o711, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o022:
        raise StoreFailed(
            f"state directory {path}: owned by uid {found.st_uid} with mode {stat.S_IMODE(found.st_mode):04o}, "
            f"must be a directory of uid {uid} that nobody else can write; remove it or set PROOFBOX_STATE"
        )
    return path


@dataclass(frozen=True, slots=True)
class Owner:
    """``id`` is 12 hex digits; ``dir`` is the owner's own directory, mode 0711, which is removed with it."""

    id: str
    dir: Path
    _lock: int = field(default=-1, repr=False, compare=False)

    @classmethod
    def register(cls) -> Owner:
        """A new owner: this process. Its record exists and is locked when this returns."""
        owners = state_dir() / "owners"
        owners.mkdir(mode=0o711, exist_ok=True)
        ident = secrets.token_hex(6)
        # The lock is taken before the record has its name: no other process can see it unlocked.
        making = owners / f".{ident}"
        lock = os.open(making, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        directory = owners / f"{ident}.d"
        directory.mkdir(mode=0o711)
        making.rename(owners / ident)
        return cls(ident, directory, lock)

    def forget(self) -> None:
        """Removes the record, after all that carried the id is gone. Idempotent."""
        try:
            self.dir.rmdir()
        except FileNotFoundError:
            pass
        self.dir.with_name(self.id).unlink(missing_ok=True)
        if self._lock >= 0:
            try:
                os.close(self._lock)
            except OSError:
                pass


def dead_owners() -> list[Owner]:
    """Owners whose process is gone, each locked by us now, so that two reapers never sweep the same one.

    Call ``forget`` on each when it was swept. An owner that another reaper holds is not listed.
    """
    owners = state_dir() / "owners"
    found: list[Owner] = []
    if not owners.is_dir():
        return found
    for record in owners.iterdir():
        if record.name.endswith(".d"):
            continue
        try:
            lock = os.open(record, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        ident = record.name.lstrip(".")
        found.append(Owner(ident, owners / f"{ident}.d", lock))
    return found
