"""Another sandbox of the same runtime, alive at the same time, whose secrets and addresses are known."""

from __future__ import annotations
