"""The command line as a user has it: a process of its own, with stores that belong to one test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Its runs and live state lie in the test's directory. Templates are shared, for `host` is the same for all."""
    short = tmp_path / "state"
    return os.environ | {
        "PROOFBOX_RUNS": str(tmp_path / "runs"),
        "PROOFBOX_STATE": str(short),
        "NO_COLOR": "1",
        "COLUMNS": "100",
    }


@pytest.fixture
def argv() -> list[str]:
    """What starts the command line here."""
    return [sys.executable, "-m", "proofbox.cli"]


@pytest.fixture
def proofbox(argv: list[str], environment: dict[str, str]) -> Run:
    """Runs one command line to its end; output as bytes."""

    def run(*args: str, stdin: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*argv, *args], input=stdin, capture_output=True, env=environment | env, timeout=120, check=False
        )

    return run
