"""Where programs are: the guest, and those of the host."""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path
from typing import Final

from proofbox.errors import Refused

ROOTS: Final = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""Where root's programs are, which are not in everybody's PATH."""


def find_program(name: str, *beside: str) -> str | None:
    """Where the host has it: on PATH, else among root's programs, else in the directories ``beside``; None without it.

    What is a path already is that program or none.
    """
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), *ROOTS, *beside)))


@cache
def guest_path() -> Path:
    """The guest's static binary, absolute: ``$PROOFBOX_GUEST`` or the one in the package.

    Raises ``Refused`` with the way to build it where it is missing or cannot be executed.
    """
    named = os.environ.get("PROOFBOX_GUEST")
    path = Path(named).absolute() if named else Path(__file__).resolve().parent.parent / "bin" / "proofbox-guest"
    if not os.access(path, os.X_OK) or not path.is_file():
        remedy = (
            "in a source tree run guest/build.sh, which needs a C compiler; else install the package again, "
            "or name a built one with PROOFBOX_GUEST"
        )
        raise Refused("running a guest", (f"the guest program {path} is missing or cannot be executed ({remedy})",))
    return path
