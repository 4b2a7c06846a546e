"""A Debian root file system from a mirror, by mmdebstrap or debootstrap: the packages that it has that day."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from proofbox.errors import InvalidInput, Refused, StoreFailed
from proofbox.host.home import private_directory, workshop
from proofbox.kit.tool import run_tool
from proofbox.model.template import Template
from proofbox.templates.store import Store, check_name
from proofbox.templates.tar import unpack_tar
from proofbox.templates.unpack import Notes, copy_directory

SECONDS: Final = 3600.0
"""A mirror that stands still must not hold its caller for ever."""

_WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9+.:=~_-]*")
_MIRROR: Final = re.compile(r"(https?|file)://[^\s'\"]+")


def bootstrap(
    store: Store, suite: str, name: str, *, mirror: str | None = None, include: Sequence[str] = ()
) -> Template:
    """A template of that suite's smallest system and the packages of ``include``. Takes a minute.

    mmdebstrap does it for every user; debootstrap for root only. Raises ``InvalidInput``, ``Refused`` without either,
    ``StoreFailed`` if it fails; nothing is left then. Killed, it leaves files that the next start removes. Another call
    gives the packages of another day.
    """
    check_name(name)
    for word in (suite, *include):
        if not _WORD.fullmatch(word):
            raise InvalidInput(f"bootstrap: {word!r} is not the name of a suite or a package")
    if mirror is not None and not _MIRROR.fullmatch(mirror):
        raise InvalidInput(f"bootstrap: the mirror {mirror!r} is not a URL of http, https or file")
    program = shutil.which("mmdebstrap") or (shutil.which("debootstrap") if os.geteuid() == 0 else None)
    if program is None:
        raise Refused("bootstrap", ("the program mmdebstrap is missing: apt install mmdebstrap",))
    private_directory(store.home)
    with workshop(store.home / "making") as place:
        facts = {
            "suite": suite,
            "include": " ".join(include),
            "mirror": mirror or "the program's own",
            "mutable": f"{suite}: the packages that the mirror had when it was made",
        }
        fill = _made(program, suite, mirror, include, place)
        source = f"{os.path.basename(program)} {suite}"
        return store.import_root(name, source, fill, facts={key: value for key, value in facts.items() if value})


def _made(program: str, suite: str, mirror: str | None, include: Sequence[str], place: Path) -> Callable[[Path], Notes]:
    tail = [mirror] if mirror else []
    if program.endswith("mmdebstrap"):
        options = ["--variant=minbase", "--format=tar", *(f"--include={word}" for word in include)]
        _run([program, *options, suite, str(place / "root.tar"), *tail])
        return lambda tree: unpack_tar(place / "root.tar", tree)
    options = ["--variant=minbase", *([f"--include={','.join(include)}"] if include else [])]
    _run([program, *options, suite, str(place / "root"), *tail])
    return lambda tree: copy_directory(place / "root", tree)


def _run(words: list[str]) -> None:
    try:
        code, output, complaints = run_tool(words, timeout=SECONDS)
    except TimeoutError as late:
        raise StoreFailed(f"bootstrap: {words[0]} was not done within {SECONDS:.0f} s; is the mirror slow?") from late
    except OSError as error:
        raise StoreFailed(f"bootstrap: {words[0]}: {error.strerror}") from error
    if code:
        said = (complaints or output).decode("utf-8", "replace").strip()
        told = "; ".join(re.findall(r"^E: (.*)", said, re.MULTILINE)) or said
        remedy = "does the mirror have that, and can it be reached? `--mirror` names another one"
        raise StoreFailed(f"bootstrap: {' '.join(words)} failed: {told[-2000:]} ({remedy})")
