"""The root directory of the ``host`` template: generated, with copies of the few public files that programs need.

What is copied is a list of names (``COPIED``), never a directory by default, and of those only what every user of the
host may read anyway: a file that is not world-readable is nobody's business inside. From configuration that may carry
credentials (package manager sources, proxies) lines with a user part or a secret are left out.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from proofbox.host.idmap import find_ids
from proofbox.templates import accounts

COPIED = (
    "etc/alternatives",
    "etc/adduser.conf",
    "etc/apk/keys",
    "etc/apk/repositories",
    "etc/apt/apt.conf.d",
    "etc/apt/keyrings",
    "etc/apt/preferences.d",
    "etc/apt/sources.list",
    "etc/apt/sources.list.d",
    "etc/apt/trusted.gpg",
    "etc/apt/trusted.gpg.d",
    "etc/bash.bashrc",
    "etc/ca-certificates",
    "etc/ca-certificates.conf",
    "etc/crypto-policies",
    "etc/debconf.conf",
    "etc/debian_version",
    "etc/deluser.conf",
    "etc/dpkg",
    "etc/fonts",
    "etc/gai.conf",
    "etc/groff",
    "etc/host.conf",
    "etc/inputrc",
    "etc/issue",
    "etc/ld.so.cache",
    "etc/ld.so.conf",
    "etc/ld.so.conf.d",
    "etc/locale.alias",
    "etc/locale.gen",
    "etc/login.defs",
    "etc/lsb-release",
    "etc/magic",
    "etc/mime.types",
    "etc/os-release",
    "etc/pam.conf",
    "etc/pam.d",
    "etc/perl",
    "etc/pip.conf",
    "etc/pki/ca-trust",
    "etc/pki/rpm-gpg",
    "etc/pki/tls/cert.pem",
    "etc/pki/tls/certs",
    "etc/pki/tls/openssl.cnf",
    "etc/profile",
    "etc/profile.d",
    "etc/protocols",
    "etc/redhat-release",
    "etc/rpc",
    "etc/security",
    "etc/services",
    "etc/shells",
    "etc/skel",
    "etc/ssl/certs",
    "etc/ssl/openssl.cnf",
    "etc/terminfo",
    "etc/ucf.conf",
    "etc/vim",
    "etc/xattr.conf",
    "etc/yum.repos.d",
    "var/lib/dpkg",
    "var/lib/rpm",
    "lib/apk/db",
)
COPIED_PATTERNS = ("etc/python3*", "etc/java-*", "etc/maven")

CONFIGURATION = (
    "etc/apt/",
    "etc/pip.conf",
    "etc/yum.repos.d/",
    "etc/apk/repositories",
    "etc/profile",
    "etc/bash.bashrc",
)
SECRET = re.compile(rb"://[^/\s\"']*@|passw|token|secret|api.?key|credential|username", re.IGNORECASE)
"""A line of configuration that may be a credential: an address with a user part, or the word for one."""

LEFT_OUT = re.compile(r"(^|/)(lock|lock-frontend|auth\.conf.*|passwords\.dat|private|.*-old|.*\.key|.*\.disabled.*)$")

DIRECTORIES = {
    "dev": 0o755,
    "etc": 0o755,
    "etc/apt": 0o755,
    "etc/init.d": 0o755,
    "etc/opt": 0o755,
    "home": 0o755,
    "home/user": 0o755,
    "media": 0o755,
    "mnt": 0o755,
    "opt": 0o755,
    "proc": 0o555,
    "root": 0o700,
    "run": 0o755,
    "run/lock": 0o1777,
    "srv": 0o755,
    "sys": 0o555,
    "tmp": 0o1777,
    "usr": 0o755,
    "var": 0o755,
    "var/cache": 0o755,
    "var/cache/apt": 0o755,
    "var/cache/apt/archives": 0o755,
    "var/cache/apt/archives/partial": 0o700,
    "var/cache/debconf": 0o755,
    "var/cache/ldconfig": 0o700,
    "var/lib": 0o755,
    "var/lib/apt": 0o755,
    "var/lib/apt/lists": 0o755,
    "var/lib/apt/lists/partial": 0o700,
    "var/lib/dpkg": 0o755,
    "var/lib/misc": 0o755,
    "var/local": 0o755,
    "var/log": 0o755,
    "var/log/apt": 0o755,
    "var/mail": 0o755,
    "var/spool": 0o755,
    "var/tmp": 0o1777,
}

LINKS = {
    "etc/localtime": "/usr/share/zoneinfo/Etc/UTC",
    "etc/mtab": "/proc/mounts",
    "var/lock": "/run/lock",
    "var/run": "/run",
}

NAME_DATABASES = ("passwd", "group", "shadow", "gshadow", "networks", "protocols", "services", "ethers", "rpc")

GENERATED = {
    # No sandbox user of apt's own: where only one id is mapped there is no other one to become.
    "etc/apt/apt.conf.d/99proofbox": 'APT::Sandbox::User "root";\n',
    "etc/environment": "",
    "etc/fstab": "",
    "etc/hostname": "sandbox\n",
    "etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback\n",
    # Empty, as in images: each sandbox is shown one of its own there.
    "etc/machine-id": "",
    "etc/networks": "loopback 127.0.0.0\n",
    "etc/nsswitch.conf": "".join(f"{name}: files\n" for name in NAME_DATABASES) + "hosts: files dns\n",
    "etc/resolv.conf": "",
    "etc/timezone": "Etc/UTC\n",
}

MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


def sources(root: Path) -> Iterator[Path]:
    """The host's files and directories that are copied, as far as they exist; the first names only, sorted."""
    names = {root / name for name in COPIED}
    names.update(found for pattern in COPIED_PATTERNS for found in root.glob(pattern))
    for path in sorted(names):
        if os.path.lexists(path):
            yield path


def build(root: Path, target: Path) -> list[str]:
    """Makes the root directory ``target`` (which must not exist) from the host at ``root``; returns what was left out.

    Every file belongs to who builds (uid 0 as root), but for ``/home/user``. Raises ``OSError``; the caller removes
    what was made.
    """
    target.mkdir(mode=0o755)
    target.chmod(0o755)
    notes: list[str] = []
    for name, mode in DIRECTORIES.items():
        (target / name).mkdir()
        (target / name).chmod(mode)
    for source in sources(root):
        _copy(root, source, target, notes)
    for name, link in LINKS.items():
        _replace(target / name)
        (target / name).symlink_to(link)
    for name, text in (GENERATED | accounts.files(root)).items():
        _replace(target / name)
        (target / name).write_text(text)
        (target / name).chmod(0o640 if "shadow" in name else 0o644)
    if (target / "var/lib/dpkg").is_dir():
        accounts.keep_known_overrides(target)
    for name in MERGED:
        if (root / name).is_symlink():
            (target / name).symlink_to((root / name).readlink())
        elif (root / name).is_dir():
            (target / name).mkdir()
    find_ids().own(target / "home/user", accounts.USER_ID)
    return notes


def _replace(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)


def _copy(root: Path, source: Path, target: Path, notes: list[str]) -> None:
    """One entry and all below it. Left out: what is not for everybody, devices, sockets."""
    name = os.path.relpath(source, root)
    if LEFT_OUT.search(name):
        return
    found = source.lstat()
    made = target / name
    if stat.S_ISLNK(found.st_mode):
        made.parent.mkdir(parents=True, exist_ok=True)
        made.symlink_to(os.readlink(source))
    elif not found.st_mode & stat.S_IROTH:
        notes.append(f"{name}: not readable by everybody")
    elif stat.S_ISDIR(found.st_mode):
        made.mkdir(parents=True, exist_ok=True)
        for entry in sorted(source.iterdir()):
            _copy(root, entry, target, notes)
    elif stat.S_ISREG(found.st_mode):
        made.parent.mkdir(parents=True, exist_ok=True)
        if name.startswith(CONFIGURATION):
            _copy_configuration(name, source, made, notes)
        else:
            shutil.copyfile(source, made, follow_symlinks=False)
        made.chmod(0o755 if found.st_mode & stat.S_IXUSR else 0o644)


def _copy_configuration(name: str, source: Path, made: Path, notes: list[str]) -> None:
    lines = source.read_bytes().splitlines(keepends=True)
    if name.endswith((".gpg", ".asc", ".pgp")):
        made.write_bytes(b"".join(lines))
        return
    kept = [line for line in lines if not SECRET.search(line)]
    if len(kept) < len(lines):
        notes.append(f"{name}: {len(lines) - len(kept)} lines that may hold a credential")
    made.write_bytes(b"".join(kept))
