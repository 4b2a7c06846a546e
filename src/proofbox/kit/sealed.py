"""Files in memory that nobody can change any more."""

from __future__ import annotations

import fcntl
from typing import Final

SEALS: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def seal(file: int) -> None:
    """From here on not even who has it open to be written changes it. It has to allow seals, and nobody may have it
    mapped to be written. Raises ``OSError``.
    """
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, SEALS)
