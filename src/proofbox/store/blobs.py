"""Large outputs of a run, each under the digest of its bytes: ``blobs/ab/ab12...``. Blocking; belongs into a thread."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from proofbox.errors import StoreFailed
from proofbox.kit.durable import sync_directory
from proofbox.model.ids import digest


def _path(root: Path, name: str) -> Path:
    hexadecimal = name.removeprefix("sha256:")
    if len(hexadecimal) != 64 or not set(hexadecimal) <= set("0123456789abcdef"):
        raise StoreFailed(f"{name!r} is not a digest")
    return root / hexadecimal[:2] / hexadecimal


def put_blob(root: Path, data: bytes) -> str:
    """Writes the bytes durably, unless they are there, and returns their digest. Safe to repeat and in parallel.

    Raises ``StoreFailed``; what is left then, or after a crash, is a temporary file that no digest names.
    """
    name = digest(data)
    path = _path(root, name)
    if path.exists():
        return name
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd, temporary = tempfile.mkstemp(prefix=".new-", dir=path.parent)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
        temporary = None
        sync_directory(path.parent)
    except OSError as error:
        raise StoreFailed(f"{len(data)} bytes of output could not be kept at {path}: {error.strerror}") from error
    finally:
        if temporary is not None:
            os.unlink(temporary)
    return name


def get_blob(root: Path, name: str) -> bytes:
    """The bytes. Raises ``StoreFailed`` where they are missing, or are not what the digest says."""
    path = _path(root, name)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StoreFailed(f"the output {name} cannot be read: {error.strerror}") from error
    if digest(data) != name:
        raise StoreFailed(f"the output {path} is damaged: its digest is {digest(data)}")
    return data
