"""Ids that this host lends to a user without rights: ``/etc/subuid``, ``/etc/subgid``, and the tools that map them."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from proofbox.errors import Refused
from proofbox.kit.binary import find_program, guest_path
from proofbox.kit.tool import with_parent

NEEDED: Final = 65_535
"""Together with the user's own id, which is root inside, all ids up to 65535: ``nobody`` is 65534 in most images."""

DEADLINE_S: Final = 10.0
"""For each of the programs that are run; a name service that hangs is not waited for."""

TOOLS: Final = ("newuidmap", "newgidmap")
"""The programs that map them."""
_FIRST_FREE: Final = 100_000
"""Where distributions begin."""


@dataclass(frozen=True, slots=True)
class Extent:
    """``count`` ids of the host from ``first`` on."""

    first: int
    count: int

    def __str__(self) -> str:
        return f"{self.first}-{self.first + self.count - 1}"


@dataclass(frozen=True, slots=True)
class Lent:
    """What a user may map beside its own id: ``NEEDED`` user ids, as many group ids."""

    uids: tuple[Extent, ...]
    gids: tuple[Extent, ...]

    @staticmethod
    def number(extents: Sequence[Extent], outside: int) -> int:
        """Which id that one of the host is inside; 0 for every other than these, the own one first of all."""
        for place, extent in zip(Lent.inside(extents)[1:], extents, strict=True):
            if 0 <= outside - extent.first < extent.count:
                return place.first + outside - extent.first
        return 0

    @staticmethod
    def inside(extents: Sequence[Extent]) -> tuple[Extent, ...]:
        """Which ids these are, together with the own one, in a namespace of ``make_namespace``."""
        found = [Extent(0, 1)]
        for extent in extents:
            found.append(Extent(found[-1].first + found[-1].count, extent.count))
        return tuple(found)

    def __str__(self) -> str:
        uids, gids = (",".join(map(str, each)) for each in (self.uids, self.gids))
        return uids if uids == gids else f"uids {uids}, gids {gids}"


class NotLent(Exception):
    """Why only the own id can be mapped, and the command that changes that (empty if none does)."""

    def __init__(self, why: str, remedy: str = "") -> None:
        super().__init__(f"{why} ({remedy})" if remedy else why)


def lent_ids(uid: int, root: Path = Path("/")) -> Lent:
    """What this host has set aside for that user. Raises ``NotLent``. ``root`` stands for "/" in tests."""
    lacking = [tool for tool in TOOLS if find_program(tool) is None]
    if lacking:
        raise NotLent(f"there is no {' and no '.join(lacking)}", "apt install uidmap")
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        raise NotLent(
            f"uid {uid} has no account, and ids are lent to accounts only", "run as a user of /etc/passwd"
        ) from None
    found = []
    for file, kind in (("etc/subuid", ()), ("etc/subgid", ("-g",))):
        extents = _file_extents(root / file, name, uid)
        if not extents and root == Path("/"):
            extents = _service_extents(name, kind)
        cut = _first_ids(extents)
        if sum(each.count for each in cut) < NEEDED:
            raise NotLent(_too_few(f"/{file}", name, extents), _remedy(name, root))
        found.append(cut)
    return Lent(*found)


def make_namespace(lent: Lent, uid: int, gid: int) -> int:
    """A user namespace with all these ids: the caller's is 0 inside, what is lent to it 1 to 65535.

    The descriptor is all that keeps it. Takes some milliseconds; what it starts is gone when it returns. Raises
    ``NotLent`` with what the kernel or one of the tools says.
    """
    try:
        holder = subprocess.Popen(
            [guest_path(), "userns"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={}
        )
    except (OSError, Refused) as error:
        raise NotLent(f"no user namespace: {error}") from error
    with holder:
        assert holder.stdout is not None
        assert holder.stderr is not None
        assert holder.stdin is not None
        if holder.stdout.read(1) != b"\0":
            raise NotLent(f"no user namespace: {holder.stderr.read(200).decode('utf-8', 'replace').strip()}")
        namespace = os.open(f"/proc/{holder.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        try:
            for tool, own, extents in ((TOOLS[0], uid, lent.uids), (TOOLS[1], gid, lent.gids)):
                _map(tool, holder.pid, own, extents)
        except BaseException:
            os.close(namespace)
            raise
        finally:
            holder.stdin.close()
    return namespace


def run_inside(
    namespace: int, words: Sequence[str], more: Mapping[str, str] | None = None, given: bytes = b""
) -> bytes:
    """Runs a program of the host as root of a namespace of ``make_namespace``, which may own files as any of its ids;
    what it says. With -1 in a new one, where the caller's id is all there is. ``more`` is added to its environment,
    ``given`` is its input. It ends with this process.

    Raises ``OSError`` with what it says of its failure.
    """
    program = shutil.which(words[0])
    if program is None:
        raise FileNotFoundError(f"no program {words[0]}")
    ids = "one" if namespace < 0 else str(namespace)
    done = subprocess.run(
        [guest_path(), "userns", ids, *with_parent([program, *words[1:]])],
        input=given,
        capture_output=True,
        env=None if more is None else {**os.environ, **more},
        pass_fds=() if namespace < 0 else (namespace,),
        check=False,
    )
    if done.returncode != 0:
        raise OSError(f"{' '.join(words)}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def run_module_inside(namespace: int, module: str, words: Sequence[str], given: bytes = b"") -> bytes:
    """As ``run_inside``, a module of ours, by this interpreter."""
    path = os.pathsep.join(filter(None, sys.path))
    return run_inside(namespace, [sys.executable, "-m", module, *words], {"PYTHONPATH": path}, given)


def _map(tool: str, pid: int, own: int, extents: Sequence[Extent]) -> None:
    words = [find_program(tool) or tool, str(pid)]
    for inside, outside in zip(Lent.inside(extents), (Extent(own, 1), *extents), strict=True):
        words += [str(inside.first), str(outside.first), str(outside.count)]
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=DEADLINE_S,
            check=False,
        )
    except OSError as error:
        raise NotLent(f"{words[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise NotLent(f"{words[0]} did not end within {DEADLINE_S:g} s") from error
    if done.returncode != 0:
        raise NotLent(f"{words[0]} failed: {done.stderr.strip()}", _why_powerless())


def _why_powerless() -> str:
    """What takes a tool its rights on this host, as far as it is known."""
    status = Path("/proc/self/status").read_text()
    if "NoNewPrivs:\t1" in status:
        return "this process may gain no privileges: start it without no_new_privs (at systemd NoNewPrivileges=no)"
    return "the tools of the package uidmap need their set-uid bit or file capabilities: apt install --reinstall uidmap"


def _file_extents(file: Path, name: str, uid: int) -> list[Extent]:
    """The lines of that user, by name and by number, in their order."""
    return [extent for owner, extent in _lines(file) if owner in (name, str(uid))]


def _lines(file: Path) -> list[tuple[str, Extent]]:
    """``owner:first:count``. What is not of that form the tools ignore as well."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    fields = [line.strip().split(":") for line in text.splitlines()]
    return [
        (each[0], Extent(int(each[1]), int(each[2])))
        for each in fields
        if len(each) == 3 and each[1].isdecimal() and each[2].isdecimal()
    ]


def _service_extents(name: str, kind: Sequence[str]) -> list[Extent]:
    """What a name service knows where the file says nothing (``subid:`` in nsswitch.conf): ``0: NAME FIRST COUNT``."""
    tool = find_program("getsubids")
    if tool is None:
        return []
    try:
        told = subprocess.run(
            [tool, *kind, name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    fields = [line.split() for line in told.stdout.splitlines()]
    return [Extent(int(each[2]), int(each[3])) for each in fields if len(each) == 4 and each[1] == name]


def _first_ids(extents: Sequence[Extent]) -> tuple[Extent, ...]:
    """The first ``NEEDED`` of them. The host's root is never among them, whatever the file says."""
    found: list[Extent] = []
    left = NEEDED
    for extent in extents:
        if left and extent.count and extent.first:
            found.append(Extent(extent.first, min(left, extent.count)))
            left -= found[-1].count
    return tuple(found)


def _too_few(file: str, name: str, extents: Sequence[Extent]) -> str:
    count = sum(extent.count for extent in extents)
    return (
        f"{file} lends {name} {count:,} ids of the {NEEDED:,} that are needed"
        if count
        else f"{file} lends {name} no ids"
    )


def _remedy(name: str, root: Path) -> str:
    """A range that nobody has yet."""
    taken = [extent for file in ("etc/subuid", "etc/subgid") for _, extent in _lines(root / file)]
    first = max((each.first + each.count for each in taken), default=0)
    fresh = Extent(max(first, _FIRST_FREE), NEEDED + 1)
    return f"usermod --add-subuids {fresh} --add-subgids {fresh} {name}"
