"""Whether volumes can be had as they are asked for, before anything is made."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from proofbox.errors import InvalidInput
from proofbox.model.spec import Volume
from proofbox.model.template import Template
from proofbox.sandbox.given import as_path
from proofbox.templates.view import View

_MADE: Final = (b"/proc", b"/sys", b"/dev")
"""What the runtime makes itself, after its own rules."""


def check_volumes(volumes: Sequence[Volume], template: Template) -> None:
    """Raises ``InvalidInput`` for one that is not there, or has no place there. Some microseconds each."""
    before: dict[bytes, bytes] = {}
    for volume in volumes:
        target, source, mode = _understood(volume)
        hidden = [each for each in before if _lies_in(each, target)]
        if hidden:
            raise InvalidInput(f"volume target {volume.target!r} would hide {hidden[0].decode(errors='replace')!r}")
        outer = max((each for each in before if _lies_in(target, each)), key=len, default=None)
        there = _mode_in_template(target, template)
        if outer is not None:
            there = _mode(before[outer] + target[len(outer) :])
            if there is None:
                raise InvalidInput(
                    f"volume target {volume.target!r} lies in the volume {outer.decode(errors='replace')!r}, which is "
                    "read-only and has no such place"
                )
        if there is not None and stat.S_ISDIR(there) != stat.S_ISDIR(mode):
            kinds = ("file", "directory")
            raise InvalidInput(
                f"volume source {volume.source!r} is a {kinds[stat.S_ISDIR(mode)]}, and at its target "
                f"{volume.target!r} is a {kinds[stat.S_ISDIR(there)]}"
            )
        before[target] = source


def _understood(volume: Volume) -> tuple[bytes, bytes, int]:
    target, source = as_path(volume.target, "volume target"), as_path(volume.source, "volume source")
    if not target.startswith(b"/") or posixpath.normpath(target) != target or target.strip(b"/") != target[1:]:
        raise InvalidInput(f"volume target {volume.target!r} is not an absolute, plain path below /")
    if target == b"/" or is_made(target):
        raise InvalidInput(f"volume target {volume.target!r} is where the runtime makes something itself")
    mode = _mode(source) if os.path.isabs(source) else None
    if mode is None:
        raise InvalidInput(f"volume source {volume.source!r} is not an absolute path of something on this host")
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        raise InvalidInput(f"volume source {volume.source!r} is neither a directory nor a file")
    return target, source, mode


def is_made(path: bytes) -> bool:
    """Whether the runtime makes what is at that absolute, plain path: nothing else can be mounted there."""
    return any(_lies_in(path, each) for each in _MADE)


def _lies_in(path: bytes, top: bytes) -> bool:
    return path == top or path.startswith(top + b"/")


def _mode(path: bytes) -> int | None:
    with suppress(OSError):
        return os.stat(path).st_mode
    return None


def _mode_in_template(target: bytes, template: Template) -> int | None:
    """None where nothing is there, or where this user may not look: then it is seen when it is mounted."""
    view = View.of(template)
    with suppress(OSError):
        found = view.find(view.resolve([name for name in target.split(b"/") if name]))
        return None if found is None else found.found.st_mode
    return None
