"""The users and groups inside the ``host`` template: the host's system accounts by name, and one user for commands."""

from __future__ import annotations

from pathlib import Path

USER = "user"
USER_ID = 1000
NOBODY = 65534
SYSTEM_IDS = range(1000)

ALWAYS = {
    "root": (0, 0, "/root", "/bin/sh"),
    "daemon": (1, 1, "/usr/sbin", "/usr/sbin/nologin"),
    "bin": (2, 2, "/bin", "/usr/sbin/nologin"),
    "sys": (3, 3, "/dev", "/usr/sbin/nologin"),
    "nobody": (NOBODY, NOBODY, "/nonexistent", "/usr/sbin/nologin"),
}
NEVER_LOGIN = "/usr/sbin/nologin"


def _entries(path: Path, fields: int) -> list[list[str]]:
    """The well-formed lines of an account file; empty if it cannot be read."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    split = (line.split(":") for line in lines if not line.startswith(("#", "+", "-")))
    return [entry for entry in split if len(entry) == fields and entry[0] and entry[2].isdigit()]


def _users(root: Path) -> dict[str, tuple[int, int, str, str]]:
    """Name: uid, gid, home, shell. System accounts only: installed packages name them as owners of files."""
    users = dict(ALWAYS)
    for name, _, uid, gid, _, home, _ in _entries(root / "etc/passwd", 7):
        if int(uid) in SYSTEM_IDS and gid.isdigit() and name not in users:
            users[name] = (int(uid), int(gid), home, NEVER_LOGIN)
    shell = "/bin/bash" if (root / "bin/bash").exists() else "/bin/sh"
    users["root"] = (0, 0, "/root", shell)
    users[USER] = (USER_ID, USER_ID, f"/home/{USER}", shell)
    return users


def _groups(root: Path) -> dict[str, int]:
    """Name: gid; without members."""
    nobodies = "nogroup" if (root / "etc/debian_version").exists() else "nobody"
    groups = {"root": 0, "daemon": 1, "bin": 2, "sys": 3, "tty": 5, "shadow": 42}
    for name, _, gid, _ in _entries(root / "etc/group", 4):
        if int(gid) in SYSTEM_IDS:
            groups[name] = int(gid)
    return groups | {nobodies: NOBODY, USER: USER_ID}


def files(root: Path) -> dict[str, str]:
    """passwd, group and their shadow files: no password works, and none of the host's is in them."""
    users, groups = _users(root), _groups(root)
    return {
        "etc/passwd": "".join(f"{n}:x:{uid}:{gid}::{home}:{sh}\n" for n, (uid, gid, home, sh) in users.items()),
        "etc/group": "".join(f"{name}:x:{gid}:\n" for name, gid in groups.items()),
        "etc/shadow": "".join(f"{name}:*:19000:0:99999:7:::\n" for name in users),
        "etc/gshadow": "".join(f"{name}:*::\n" for name in groups),
        "etc/subuid": "",
        "etc/subgid": "",
    }


def keep_known_overrides(target: Path) -> None:
    """dpkg does nothing at all if its override list names a user that does not exist: lines with such a user go."""
    path = target / "var/lib/dpkg/statoverride"
    if not path.exists():
        return
    users = {entry[0] for entry in _entries(target / "etc/passwd", 7)}
    groups = {entry[0] for entry in _entries(target / "etc/group", 4)}
    split = (line.split(maxsplit=3) for line in path.read_text().splitlines())
    path.write_text("".join(" ".join(f) + "\n" for f in split if len(f) == 4 and f[0] in users and f[1] in groups))
