"""The lines in which a guest tells what its sandbox is: u8 part, u16 length, that many bytes, one after the other."""

from __future__ import annotations

import struct
from typing import Final

from proofbox.model.fingerprint import PARTS, PartName
from proofbox.wire.frames import WireError

FINGERPRINT: Final = 13
"""The code of the file operation."""
FULL: Final = 2
OWN_IDS: Final = 1
"""Its flags: the full form; the sandbox's users are nobody else's outside, so that their keys can be counted."""

LINE_MOST: Final = 16_384
_HEAD: Final = struct.Struct("<BH")


def decode_lines(raw: bytes) -> dict[PartName, list[str]]:
    """The lines of each part. Bytes that are no UTF-8 become surrogate escapes. Raises ``WireError``."""
    found: dict[PartName, list[str]] = {name: [] for name in PARTS}
    at = 0
    while at < len(raw):
        if at + _HEAD.size > len(raw):
            raise WireError("fingerprint cut off in the head of a line")
        part, length = _HEAD.unpack_from(raw, at)
        at += _HEAD.size
        if not 1 <= part <= len(PARTS) or length > LINE_MOST or at + length > len(raw):
            raise WireError(f"fingerprint with a line of part {part} and {length} bytes, {len(raw) - at} are left")
        found[PARTS[part - 1]].append(raw[at : at + length].decode("utf-8", "surrogateescape"))
        at += length
    return found


def encode_lines(lines: dict[PartName, list[str]]) -> bytes:
    """The other direction."""
    encoded = ((name, line.encode("utf-8", "surrogateescape")) for name in PARTS for line in lines.get(name, []))
    return b"".join(_HEAD.pack(PARTS.index(name) + 1, len(line)) + line for name, line in encoded)
