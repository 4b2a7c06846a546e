"""Names of templates: a small file each, with the digest that the name stands for.

HOME/names/<name>    with ``%`` for ``/``
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from proofbox.errors import StoreFailed, UnknownTemplate
from proofbox.host.home import private_directory, write_atomically

NAME: Final = re.compile(r"[a-z0-9][a-z0-9._/-]{0,127}")
DIGEST: Final = re.compile(r"(?:sha256:)?([0-9a-f]{64})")


class Names:
    """The names in one store. Any number of processes and threads may use the same directory at once."""

    def __init__(self, home: Path) -> None:
        self._directory = home / "names"

    def known(self) -> tuple[str, ...]:
        """Sorted."""
        if not self._directory.is_dir():
            return ()
        files = (file.name for file in self._directory.iterdir())
        return tuple(sorted(name.replace("%", "/") for name in files if not name.startswith(".")))

    def digest_of(self, name: str) -> str:
        """What it stands for; a digest for itself. Raises ``UnknownTemplate``, ``StoreFailed`` for a damaged one."""
        if found := DIGEST.fullmatch(name):
            return f"sha256:{found[1]}"
        if not NAME.fullmatch(name):
            raise UnknownTemplate(name, self.known())
        file = self._file(name)
        try:
            text = file.read_bytes().decode("ascii", "replace").strip()
        except (FileNotFoundError, NotADirectoryError):
            raise UnknownTemplate(name, self.known()) from None
        except OSError as error:
            raise StoreFailed(f"template {name!r}: {error}") from error
        if not DIGEST.fullmatch(text):
            raise StoreFailed(f"template {name!r}: {file} holds no digest; remove it and make it again")
        return text

    def stand_for(self, name: str, digest: str) -> bool:
        """Whether that is what the name means."""
        try:
            return self.digest_of(name) == digest
        except (UnknownTemplate, StoreFailed):
            return False

    def point(self, name: str, digest: str) -> None:
        """``name`` stands for it from now on. Raises ``OSError``, ``StoreFailed``."""
        private_directory(self._directory)
        file, data = self._file(name), f"{digest}\n".encode()
        if not file.exists() or file.read_bytes() != data:
            write_atomically(file, data)

    def drop(self, name: str) -> None:
        """It stands for nothing any more. Safe to repeat."""
        self._file(name).unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        return self._directory / name.replace("/", "%")
