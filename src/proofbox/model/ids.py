"""Names and digests: of a run, of a trial, of any value."""

from __future__ import annotations

import hashlib
import re
from datetime import datetime
from typing import Any, Final

import msgspec

from proofbox.errors import InvalidInput

RUN_ID: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


class TrialId(msgspec.Struct, frozen=True, order=True):
    """Trial ``index`` (from 0) of one task in a run. Written ``HumanEval/3#0``."""

    task: str
    index: int

    def __str__(self) -> str:
        return f"{self.task}#{self.index}"


def run_id(moment: datetime, salt: bytes) -> str:
    """A name that sorts by time: ``20260131-235959-a1b2c3``. ``salt`` is three or more random bytes."""
    return f"{moment:%Y%m%d-%H%M%S}-{salt[:3].hex()}"


def check_run_id(name: str) -> str:
    """The name itself. It becomes a directory's name, so nothing else than ``RUN_ID`` may get through.

    Raises ``InvalidInput``.
    """
    if RUN_ID.fullmatch(name) is None:
        raise InvalidInput(f"{name!r} is not the name of a run: 1 to 63 of a-z 0-9 - _, as `proofbox runs` lists them")
    return name


def digest(data: bytes) -> str:
    """``sha256:`` and 64 hex digits."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def digest_of(value: Any) -> str:
    """The digest of a value's JSON with sorted keys. Raises ``InvalidInput`` for what JSON in UTF-8 cannot hold."""
    try:
        return digest(msgspec.json.encode(value, order="sorted"))
    except (UnicodeEncodeError, TypeError, ValueError) as error:
        raise InvalidInput(f"a value that cannot be recorded as JSON: {error}") from None
