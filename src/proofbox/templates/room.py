"""How large what is unpacked may become: a small archive can unpack to more than any disk holds."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import IO, Final, cast

from proofbox.errors import InvalidInput

BYTES: Final = 64 << 30
FILES: Final = 4_000_000
"""The largest images in use, with graphics drivers and data, have a third of either."""
BYTES_VARIABLE: Final = "PROOFBOX_UNPACK_BYTES"
FILES_VARIABLE: Final = "PROOFBOX_UNPACK_FILES"


_NUMBER: Final = re.compile(r"([0-9]{1,15})([KMGT]?)")


@dataclass(slots=True)
class Room:
    """What one import, or one layer of a build, may still take. ``what`` is being unpacked now, for the message."""

    most_bytes: int
    most_files: int
    what: str = "unpack"
    used_bytes: int = 0
    used_files: int = 0

    @classmethod
    def whole(cls, what: str = "unpack") -> Room:
        """As the environment says, or the default. Raises ``InvalidInput`` for what is no number there."""
        return cls(_number(BYTES_VARIABLE, BYTES), _number(FILES_VARIABLE, FILES), what)

    def take_file(self) -> None:
        """One entry more. Raises ``InvalidInput`` if that is too many."""
        self.used_files += 1
        if self.used_files > self.most_files:
            raise self._full(f"{self.most_files} files and directories", FILES_VARIABLE)

    def take(self, size: int) -> None:
        """So many bytes more. Raises ``InvalidInput`` if those are too many."""
        self.used_bytes += size
        if self.used_bytes > self.most_bytes:
            raise self._full(f"{self.most_bytes} bytes", BYTES_VARIABLE)

    def counted(self, content: IO[bytes]) -> IO[bytes]:
        """The same, and what is read of it takes room."""
        return cast(IO[bytes], _Counted(content, self))

    def _full(self, limit: str, variable: str) -> InvalidInput:
        return InvalidInput(
            f"{self.what}: it unpacks to more than {limit}, and was given up; if it is to be so large, "
            f"allow more with the environment variable {variable}"
        )


class _Counted:
    def __init__(self, content: IO[bytes], room: Room) -> None:
        self._content = content
        self._room = room

    def read(self, size: int) -> bytes:
        data = self._content.read(size)
        self._room.take(len(data))
        return data


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    if not text:
        return default
    found = _NUMBER.fullmatch(text)
    amount = int(found[1]) << 10 * " KMGT".index(found[2] or " ") if found else 0
    if amount < 1:
        raise InvalidInput(
            f"environment variable {variable}={text!r} is no whole number above 0, or one with K, M, G, T"
        )
    return amount
