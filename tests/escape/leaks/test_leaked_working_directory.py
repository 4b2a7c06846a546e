"""A working directory below /proc/self/fd, which a runtime holds open on the host (CVE-2024-21626)."""

from __future__ import annotations

import pytest
from tests.escape.conftest import Inside

from proofbox.errors import OperationFailed

LOOK = "pwd -P; cd ../../../../../../../..; ls -A | sort; test ! -e {file}"
PLACES = [f"/proc/self/fd/{number}" for number in range(3, 14)]
PLACES += ["/proc/1/cwd", "/proc/1/root", "/proc/1/fd/3", "/proc/self/task/1/cwd", "/proc/thread-self/root/../.."]


@pytest.mark.parametrize("link", [False, True], ids=["named", "through a link"])
async def test_no_working_directory_leads_out(inside: Inside, link: bool) -> None:
    """Whatever descriptor the guest has open, a command that starts there is inside, or does not start."""
    root = (await inside.box.run("cd /; ls -A | sort")).stdout
    for place in PLACES:
        await inside.box.run(["ln", "-sfn", place, "/tmp/place"])
        try:
            look = LOOK.format(file=inside.given["file"])
            result = await inside.box.run(look, cwd="/tmp/place" if link else place, user=inside.user)
        except OperationFailed:
            continue
        assert result.ok, (place, result)
        assert result.stdout.partition("\n")[2] == root, place
