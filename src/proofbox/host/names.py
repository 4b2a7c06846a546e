"""The host's names, for the one network mode that shares the host's network."""

from __future__ import annotations

import os
from collections.abc import Container
from typing import Final

NAME_FILES: Final = ("/etc/resolv.conf", "/etc/hosts")
"""Without them nothing that is asked for by name could be reached."""


def name_files(taken: Container[str]) -> list[tuple[str, str]]:
    """Source and target of each that this host has and that is not among the targets ``taken``."""
    return [(name, name) for name in NAME_FILES if name not in taken and os.path.exists(name)]
