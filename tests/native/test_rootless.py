"""Tests once more as a user without any rights and ids, where the caller is root and can become one."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from proofbox.kit.binary import guest_path

pytestmark = [
    pytest.mark.container,
    pytest.mark.skipif(os.geteuid() != 0, reason="as another user the suite itself is the test"),
]

TOP = Path(__file__).resolve().parents[2]

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


def _run(uid: int, words: list[str]) -> subprocess.CompletedProcess[str]:
    """Python with these arguments as that user, who has a directory of its own and nothing else."""
    python = _python()
    if python is None:
        pytest.skip("no interpreter of this version can be run by everybody")
    home = Path("/tmp") / f"proofbox-rootless-{os.getpid()}"
    home.mkdir(mode=0o700)
    os.chown(home, uid, uid)
    try:
        return subprocess.run(
            [python, *(word.format(home=home) for word in words)],
            user=uid,
            group=uid,
            extra_groups=[],
            cwd=home,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(home),
                "TMPDIR": str(home),
                "PYTHONPATH": os.pathsep.join([str(TOP), *(path for path in sys.path if path)]),
                "PYTHONDONTWRITEBYTECODE": "1",
                "PROOFBOX_GUEST": str(guest_path()),
                "PROOFBOX_STATE": f"{home}/state",
                "PROOFBOX_REQUIRE": os.environ.get("PROOFBOX_REQUIRE", ""),
            },
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.mark.parametrize("tests", ["test_confinement.py", pytest.param(".", marks=pytest.mark.slow, id="all")])
def test_the_suite_passes_without_rights(tests: str) -> None:
    """No root, no capabilities, no control groups: isolation is the same; limits that need groups are refused."""
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--basetemp={home}/base"]
    run = _run(NOBODY, [*words, "--rootdir", str(Path(__file__).parent), str(Path(__file__).parent / tests)])
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert " passed" in run.stdout


def test_doctor_says_why_there_is_one_user_and_what_brings_more() -> None:
    """An account to which nothing is lent gets the command that lends it something; a bare number has no account."""
    nobody = next((each for each in pwd.getpwall() if each.pw_name == "nobody" and each.pw_uid), None)
    if nobody is None or not shutil.which("newuidmap"):
        pytest.skip("there is no user nobody, or no newuidmap, on this host")
    for uid, why in (
        (nobody.pw_uid, "lends nobody no ids (usermod --add-subuids "),
        (NOBODY, f"uid {NOBODY} has no account"),
    ):
        run = _run(uid, ["-m", "proofbox.cli", "doctor", "--json", "--runtime", "native"])
        (entry,) = json.loads(run.stdout)["runtimes"]
        assert entry["usable"], entry["missing"]
        assert not entry["users"]
        assert entry["facts"]["ids"] == "1"
        assert any(why in note for note in entry["notes"]), entry["notes"]
