"""Programs of this host that do a part of our work."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Final

from proofbox.kit.binary import guest_path
from proofbox.kit.thread import give_up_if_cancelled

_LOOK_SECONDS: Final = 0.1
"""Between looks whether whoever waits for us still does."""


def with_parent(words: Sequence[str]) -> list[str]:
    """What runs a program (``words[0]``: its path) so that it and all that it starts end with this process.

    Raises ``Refused`` without a guest binary.
    """
    return [str(guest_path()), "with-parent", str(os.getpid()), *words]


def run_tool(
    words: Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> tuple[int, bytes, bytes]:
    """Runs a program (``words[0]``: its path): its exit status (128 and more: the signal), output and complaints.

    Blocks. Nothing of it is left when this returns or raises, nor when this process ends, however it does: neither a
    process that the program has started, nor, for root, what it has mounted. Raises ``TimeoutError`` after so many
    seconds, ``OSError``, ``Refused`` without a guest binary, and what ends the task that waits for this thread.
    """
    late = monotonic() + timeout
    with subprocess.Popen(
        with_parent(words),
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    said, complaints = process.communicate(timeout=_LOOK_SECONDS)
                    return process.returncode, said, complaints
                give_up_if_cancelled()
                if monotonic() > late:
                    raise TimeoutError
        finally:
            process.terminate()
