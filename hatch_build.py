"""Puts the compiled guest into every wheel and every editable install.

The guest is one static program; ``guest/build.sh`` compiles it to ``src/proofbox/bin/proofbox-guest``. A machine
without a compiler can name a finished one of the same version:
``PROOFBOX_GUEST=/path/to/proofbox-guest pip install ...``.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILERS = ("musl-gcc", "cc", "gcc")
NO_COMPILER = (
    "proofbox: no C compiler found, and the guest (the small program inside every sandbox) has to be compiled: "
    "run `apt-get install gcc libc6-dev` (or `musl-tools`) as root, or set PROOFBOX_GUEST to a guest built elsewhere."
)


class GuestHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles the guest before files are gathered. Safe to repeat: the same sources give the same program."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """``version`` is "standard" or "editable". Ends the build with one sentence if there is no way to a guest."""
        del version
        if sys.platform != "linux":
            sys.exit(f"proofbox: needs Linux (this is {sys.platform}): a sandbox is made of Linux namespaces.")
        root = Path(self.root)
        guest = root / "src" / "proofbox" / "bin" / "proofbox-guest"
        guest.parent.mkdir(parents=True, exist_ok=True)
        given = os.environ.get("PROOFBOX_GUEST")
        if given:
            if Path(given).resolve() != guest.resolve():
                shutil.copyfile(given, guest)
                guest.chmod(0o755)
        else:
            compile_guest(root)
        if not os.access(guest, os.X_OK):
            sys.exit(f"proofbox: guest/build.sh ended well but left no program at {guest}.")
        # Not pure Python, but bound to no Python version: the guest is static and talks over a socket.
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{platform.machine()}"


def compile_guest(root: Path) -> None:
    """Runs ``guest/build.sh``. Ends the build with a sentence if there is no compiler or it fails."""
    chosen = os.environ.get("CC", "").split()[:1]
    if not any(shutil.which(name) for name in (*chosen, *COMPILERS)):
        sys.exit(NO_COMPILER)
    done = subprocess.run(["sh", str(root / "guest" / "build.sh")], cwd=root, check=False)
    if done.returncode:
        sys.exit(
            f"proofbox: guest/build.sh failed with exit status {done.returncode} (its messages are above). "
            "A missing <stdio.h> or libc.a means: run `apt-get install gcc libc6-dev` (or `musl-tools`) as root."
        )
