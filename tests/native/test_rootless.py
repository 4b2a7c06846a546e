"""Tests once more as a user without any rights and ids, where the caller is root and can become one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from proofbox.kit.binary import guest_path

pytestmark = pytest.mark.container

NOBODY = 54321
"""An id that no account has: the host lends it no ids, so that there is one user inside."""


def _python() -> str | None:
    """An interpreter that everybody may run."""
    for path in (sys.executable, shutil.which("python3", path="/usr/bin:/usr/local/bin")):
        if path is None:
            continue
        asked = [path, "-c", "import sys; print(sys.version_info[:2])"]
        try:
            tried = subprocess.run(
                asked, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, text=True, cwd="/", check=False
            )
        except PermissionError:
            continue
        if tried.returncode == 0 and tried.stdout.strip() == str(sys.version_info[:2]):
            return path
    return None


@pytest.mark.skipif(os.geteuid() != 0, reason="as another user the suite itself is the test")
@pytest.mark.parametrize("tests", ["test_confinement.py", pytest.param(".", marks=pytest.mark.slow, id="all")])
def test_the_suite_passes_without_rights(tests: str) -> None:
    """No root, no capabilities, no control groups: isolation is the same; limits that need groups are refused."""
    python = _python()
    if python is None:
        pytest.skip("no interpreter of this version can be run by everybody")
    home = Path("/tmp") / f"proofbox-rootless-{os.getpid()}"
    home.mkdir(mode=0o700)
    os.chown(home, NOBODY, NOBODY)
    try:
        run = subprocess.run(
            [
                python,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                "--rootdir",
                str(Path(__file__).parent),
                "-c",
                "/dev/null",
                f"--basetemp={home}/base",
                str(Path(__file__).parent / tests),
            ],
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            cwd=home,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(home),
                "TMPDIR": str(home),
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                "PYTHONDONTWRITEBYTECODE": "1",
                "PROOFBOX_GUEST": str(guest_path()),
                "PROOFBOX_REQUIRE": os.environ.get("PROOFBOX_REQUIRE", ""),
            },
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        shutil.rmtree(home, ignore_errors=True)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert " passed" in run.stdout
