"""A small template out of this host's own files, for runtimes to which the whole of ``/usr`` is too much."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from proofbox.model.template import Template
from proofbox.templates.store import Store

NAME: Final = "proofbox-small"
PROGRAMS: Final = """
    sh bash cat chmod chown cp cut date dd df dirname du env expr false find flock grep head id kill ln ls mkdir mkfifo
    mknod mktemp mount mv nohup nproc od passwd pgrep printf ps pwd readlink rm rmdir sed seq setsid sha256sum sleep
    sort stat stty su sync tail tar tee test timeout touch tr true tty uname uniq unshare wc whoami xargs yes awk cmp
    dmesg nsenter chroot hostname
"""
"""Those that the checks use. One that this host lacks is left out."""
WITHOUT: Final = ("*-packages", "test", "idlelib", "ensurepip", "lib2to3", "tkinter", "config-*")
"""Of Python's library. What it has compiled stays: no user inside could keep it, and emulated it takes seconds."""
FILES: Final[dict[str, str]] = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n",
    "etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "etc/machine-id": "\n",
    "etc/default/locale": "LANG=C.UTF-8\n",
}
DIRECTORIES: Final = (
    "usr/bin",
    "usr/sbin",
    "usr/lib",
    "usr/lib64",
    "etc/default",
    "root",
    "home",
    "mnt",
    "run",
    "tmp",
    "var/tmp",
)
ABOUT: Final = "import sysconfig; print(sysconfig.get_path('stdlib'))"
PATH: Final = "/usr/bin:/bin:/usr/sbin:/sbin"


def small_template(store: Store) -> Template:
    """A shell, the usual tools, and Python with its own library alone, and the libraries of all. Safe to repeat."""
    with TemporaryDirectory() as place:
        root = Path(place)
        root.chmod(0o755)
        for directory in DIRECTORIES:
            (root / directory).mkdir(parents=True)
        for link in ("bin", "sbin", "lib", "lib64"):
            (root / link).symlink_to(f"usr/{link}")
        for each in ("tmp", "var/tmp"):
            (root / each).chmod(0o1777)
        for name, text in FILES.items():
            (root / name).write_text(text)
        found = (shutil.which(name, path=PATH) for name in (*PROGRAMS.split(), "python3"))
        programs = [path for path in found if path is not None]
        for program in programs:
            _add(root, Path("/usr/bin") / Path(program).name, Path(program))
        _add_python(root)
        for library in _libraries([*programs, *map(str, root.glob("usr/lib/python3*/lib-dynload/*.so"))]):
            _add(root, Path(library), Path(library))
        return store.import_directory(root, NAME)


def _add(root: Path, where: Path, source: Path) -> None:
    target = root / where.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy(source.resolve(), target)


def _add_python(root: Path) -> None:
    """Its library; none where the distribution has no Python."""
    if not (root / "usr/bin/python3").exists():
        return
    told = subprocess.run(["/usr/bin/python3", "-I", "-c", ABOUT], check=True, capture_output=True).stdout
    library = Path(told.decode().strip())
    shutil.copytree(library, root / library.relative_to("/"), ignore=shutil.ignore_patterns(*WITHOUT))


def _libraries(programs: Iterable[str]) -> list[str]:
    """Where the dynamic linker looks for each, and where the linker itself is looked for."""
    told = subprocess.run(["ldd", *programs], check=False, capture_output=True).stdout.decode()
    return [*dict.fromkeys(re.findall(r"(?:=> |^\s+)(/\S+) \(0x", told, re.MULTILINE))]
