"""Removing a tree that others have shaped."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from typing import Any


def remove_tree(path: str | os.PathLike[str]) -> None:
    """Removes ``path`` and all below it, directories without any permission included. Missing is fine, at any depth.

    Links are not followed. Raises ``OSError`` for what cannot be removed. Safe to repeat.
    """
    if not os.path.lexists(path):
        return
    try:
        _remove(path)
    except PermissionError:
        if as_root is None or os.geteuid() == 0:
            raise
        as_root(os.fspath(path))


as_root: Callable[[str], None] | None = None
"""Removes a tree in which ids that are lent to this user own something; who knows of such ids sets it."""


def _remove(path: str | os.PathLike[str]) -> None:
    if os.geteuid() != 0:
        _open_up(path)
    if sys.version_info >= (3, 12):
        shutil.rmtree(path, onexc=_missing_is_fine)
    else:
        shutil.rmtree(path, onerror=_missing_is_fine)


def _open_up(path: str | os.PathLike[str]) -> None:
    os.chmod(path, 0o700)
    for directory, names, _ in os.walk(path):
        for name in names:
            inner = os.path.join(directory, name)
            # A directory of another id cannot be opened up; it goes all the same if it is empty.
            if not os.path.islink(inner) and os.lstat(inner).st_uid == os.geteuid():
                os.chmod(inner, 0o700)


def _missing_is_fine(function: Any, path: str, error: Any) -> None:
    reason = error[1] if isinstance(error, tuple) else error
    if not isinstance(reason, FileNotFoundError):
        raise reason
