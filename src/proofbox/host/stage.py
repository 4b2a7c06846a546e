"""Where something of ours may be seen in a mount namespace of its own."""

from __future__ import annotations

import os
from typing import Final

STAGES: Final = ("/mnt", "/tmp", "/run", "/var")


def stage() -> str:
    """The first of ``STAGES`` that is a directory of this host, to be mounted over in a mount namespace of its own."""
    return next((place for place in STAGES if os.path.isdir(place) and not os.path.islink(place)), "/usr")
