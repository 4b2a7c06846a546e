"""Probes that took long, kept on disk for as long as nothing has changed that they rest on.

An answer that is kept spares the next process the proof, and nothing else: every sandbox is made and confined as ever,
and where one cannot be made the answer is dropped. Only "usable" is kept: who mends a host is believed at once.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from proofbox.errors import ProofboxError, StoreFailed
from proofbox.host.owner import state_dir
from proofbox.host.subids import TOOLS
from proofbox.kit.binary import find_program, guest_path
from proofbox.model.ids import digest
from proofbox.runtime.contract import Probe

SLOW: Final = 0.25
"""Seconds from which on a probe is worth keeping."""
LONGEST: Final = 86_400.0
"""Seconds for which it is believed at most: a few things that matter have no file that says so."""
MOST: Final = 1 << 20
"""Bytes of an answer that are read."""

SWITCHES: Final = (
    *("kernel/unprivileged_userns_clone", "kernel/apparmor_restrict_unprivileged_userns", "kernel/modules_disabled"),
    *("kernel/yama/ptrace_scope", "kernel/seccomp/actions_avail", "vm/overcommit_memory", "vm/max_map_count"),
)
"""Below /proc/sys, beside all of ``user``."""
OWN: Final = ("cgroup", "limits", "attr/current", "uid_map", "gid_map")
"""Below /proc/self."""
STATUS: Final = ("Uid:", "Gid:", "Groups:", "CapEff:", "CapBnd:", "NoNewPrivs:", "Seccomp:", "Cpus_allowed:")
VARIABLES: Final = ("PATH", "HOME", "XDG_RUNTIME_DIR", "XDG_DATA_HOME", "LD_LIBRARY_PATH", "LD_PRELOAD")


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    facts: str
    at: float
    probe: Probe


def recall(name: str, facts: str) -> Probe | None:
    """What was found here before, if the facts are as they were then. None too where there is nothing, or it is not for
    us to trust. Blocks.
    """
    try:
        data = _read(_file(name))
        kept = msgspec.json.decode(data, type=_Kept)
    except (OSError, StoreFailed, msgspec.MsgspecError, UnicodeError):
        return None
    fresh = 0 <= time.time() - kept.at < LONGEST
    return kept.probe if fresh and kept.name == name and kept.facts == facts else None


def keep(name: str, facts: str, probe: Probe) -> None:
    """Replaces what is kept, whole or not at all. What cannot be written is asked again next time. ``facts`` are those
    of before the probe: what changes while it runs is asked about again.
    """
    kept = _Kept(name=name, facts=facts, at=time.time(), probe=probe)
    with suppress(OSError, StoreFailed):
        path = _file(name)
        making = path.with_name(f".{path.name}.new")
        making.unlink(missing_ok=True)  # of one that was killed, or is writing the same at this moment
        with open(making, "xb", opener=lambda file, flags: os.open(file, flags, 0o600)) as file:
            file.write(msgspec.json.encode(kept))
        making.rename(path)
        _sweep(path.parent)


def _sweep(directory: Path) -> None:
    """Removes what is too old to be believed: of runtimes that are asked for no more."""
    for path in directory.iterdir():
        with suppress(FileNotFoundError):
            if time.time() - path.lstat().st_mtime > LONGEST:
                path.unlink()


def drop(name: str) -> None:
    """Forgets what is kept. Idempotent."""
    with suppress(OSError, StoreFailed):
        _file(name).unlink(missing_ok=True)


def _file(name: str) -> Path:
    """A name may hold a path."""
    return _directory() / name.replace("/", "%")


def facts(rests_on: Sequence[str]) -> str:
    """A digest of everything that the answer depends on: this boot, kernel and user, what this process may, where its
    groups are, the switches, the programs, and ``rests_on``: the runtime's own files and devices. Some milliseconds.
    """
    return digest("\0".join(_told(rests_on)).encode("utf-8", "surrogateescape"))


def _told(rests_on: Sequence[str]) -> Iterator[str]:
    yield _text("/proc/sys/kernel/random/boot_id")
    yield _text("/proc/version")
    status = _text("/proc/self/status").splitlines()
    yield from (line for line in status if line.startswith(STATUS))
    yield from (_text(f"/proc/self/{name}") for name in OWN)
    yield from (line.partition(" - ")[2] for line in _text("/proc/self/mountinfo").splitlines() if "cgroup" in line)
    yield from _links("/proc/self/ns")
    yield from (f"{name}={_text(f'/proc/sys/{name}')}" for name in (*_names("/proc/sys/user", "user/"), *SWITCHES))
    yield from (f"{name}={value}" for name, value in sorted(os.environ.items()) if _matters(name))
    lenders = (find_program(name) or name for name in TOOLS)
    yield from map(_looked_at, ("/etc/subuid", "/etc/subgid", *lenders, _guest(), *_code(), *rests_on))


def _matters(name: str) -> bool:
    return name in VARIABLES or name.startswith("PROOFBOX_")


def _guest() -> str:
    try:
        return os.fspath(guest_path())
    except (ProofboxError, OSError):
        return ""


def _code() -> Iterable[str]:
    """The files that this package consists of, as far as they make sandboxes."""
    root = Path(__file__).parent.parent
    found = (path for part in ("host", "runtime", "runtimes") for path in (root / part).rglob("*.*"))
    return sorted(str(path) for path in found if path.suffix != ".pyc")


def _looked_at(path: str) -> str:
    """What a change of the file changes, whoever made it and whatever time it was given."""
    try:
        found = os.stat(path)
    except OSError as error:
        return f"{path}: {error.strerror}"
    what = (found.st_dev, found.st_ino, found.st_mode, found.st_uid, found.st_gid, found.st_rdev, found.st_size)
    return f"{path}: {what} {found.st_mtime_ns} {found.st_ctime_ns}"


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:  # EINVAL, for instance, of an attribute that nothing provides
        return str(error.strerror)


def _names(directory: str, prefix: str) -> list[str]:
    with suppress(OSError):
        return [prefix + name for name in sorted(os.listdir(directory))]
    return []


def _links(directory: str) -> Iterator[str]:
    for name in _names(directory, ""):
        with suppress(OSError):
            yield os.readlink(f"{directory}/{name}")


def _directory() -> Path:
    """Ours alone. Raises ``StoreFailed``. Threat: another user's word on what isolates here."""
    path = state_dir() / "probes"
    path.mkdir(mode=0o700, exist_ok=True)
    _ours(path, path.lstat(), stat.S_ISDIR)
    return path


def _read(path: Path) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        _ours(path, os.fstat(file), stat.S_ISREG)
        return os.read(file, MOST)
    finally:
        os.close(file)


def _ours(path: Path, found: os.stat_result, kind: Callable[[int], bool]) -> None:
    if not kind(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise StoreFailed(f"{path} is not ours alone: uid {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}")
