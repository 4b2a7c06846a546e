"""The guest under test: built once from the sources, and driven over a socket pair."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .driver import Guest

BUILD = Path(__file__).parents[2] / "guest" / "build.sh"
SANITIZE = "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"


@pytest.fixture(scope="session")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A guest built from the sources as they are. PROOFBOX_TEST_SANITIZE=1 builds it with ASan and UBSan."""
    out = tmp_path_factory.mktemp("guest") / "proofbox-guest"
    env = dict(os.environ)
    if env.get("PROOFBOX_TEST_SANITIZE") == "1":
        env |= {"CC": env.get("CC", "gcc"), "CFLAGS": SANITIZE, "LDFLAGS": "-g"}
    subprocess.run([str(BUILD), "-o", str(out)], check=True, env=env)
    return out


@pytest.fixture
def guest_process(binary: Path) -> Iterator[Guest]:
    """A fresh guest; when the test ends it must leave by itself, with exit code 0."""
    with Guest(binary) as running:
        yield running
    assert running.process.returncode == 0
