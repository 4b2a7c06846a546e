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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from proofbox.errors import StoreFailed
from proofbox.kit.lock import try_lock

_locks: Final[dict[str, int]] = {}
"""Owner id -> the descriptor that holds its lock in this process."""


def _forked() -> None:
    # A child that never execs shares the lock: it would keep its dead parent's record from ever being swept.
    for lock in _locks.values():
        os.close(lock)
    _locks.clear()


os.register_at_fork(after_in_child=_forked)


def state_dir() -> Path:
    """Where live state is kept: ``$PROOFBOX_STATE``, ``/run/proofbox`` for root, else below ``$XDG_RUNTIME_DIR`` or
    ``/tmp``.

    Made with mode 0711 if it is missing. Raises ``StoreFailed`` if somebody else owns it (``/tmp`` is shared by all
    users).
    """
    uid = os.geteuid()
    named = os.environ.get("PROOFBOX_STATE")
    if named:
        path = Path(named).absolute()
    elif uid == 0:
        path = Path("/run/proofbox")
    elif runtime := os.environ.get("XDG_RUNTIME_DIR"):
        path = Path(runtime) / "proofbox"
    else:
        path = Path(f"/tmp/proofbox-{uid}")
    try:
        path.mkdir(mode=0o711, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise StoreFailed(f"state directory {path}: {error.strerror}; set PROOFBOX_STATE to one of your own") from error
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

    @classmethod
    def register(cls) -> Owner:
        """A new owner: this process. Its record exists and is locked when this returns. Raises ``StoreFailed``."""
        owners = state_dir() / "owners"
        ident = secrets.token_hex(6)
        owner = cls(ident, owners / f"{ident}.d")
        try:
            owners.mkdir(mode=0o711, exist_ok=True)
            with _alone(owners):
                lock = os.open(owners / ident, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                fcntl.flock(lock, fcntl.LOCK_EX)
                _locks[ident] = lock
                owner.dir.mkdir(mode=0o711)
        except OSError as error:
            raise StoreFailed(f"owner record {owners / ident}: {error.strerror}; is the file system full?") from error
        return owner

    def forget(self) -> bool:
        """Removes the record, after all that carried the id is gone. Idempotent; does nothing in a forked child.

        False if the directory still holds something: the record stays then, unlocked, for the next sweep.
        """
        if self.id not in _locks:
            return not self.dir.exists()
        try:
            self.dir.rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            self.release()
            return False
        self.dir.with_name(self.id).unlink(missing_ok=True)
        self.release()
        return True

    def release(self) -> None:
        """Gives up the lock and leaves the record: whoever sweeps next takes it. Idempotent."""
        lock = _locks.pop(self.id, None)
        if lock is not None:
            os.close(lock)


def dead_owners() -> list[Owner]:
    """Owners whose process is gone, each locked by us now, so that two reapers never sweep the same one.

    Call ``forget`` on each when it was swept, else ``release``. An owner that another reaper holds is not listed.
    """
    owners = state_dir() / "owners"
    found: list[Owner] = []
    if not owners.is_dir():
        return found
    with _alone(owners):
        for record in owners.iterdir():
            if record.name.endswith(".d") or record.name in _locks:
                continue
            lock = try_lock(record)
            if lock is None:
                continue
            _locks[record.name] = lock
            found.append(Owner(record.name, owners / f"{record.name}.d"))
    return found


@contextmanager
def _alone(owners: Path) -> Iterator[None]:
    """Nobody else makes or looks at records meanwhile: a record is never seen between its creation and its lock."""
    directory = os.open(owners, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)
