"""Who a command runs as is decided when it starts, whatever was looked up ahead of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import proofbox
from proofbox.errors import Refused
from proofbox.host.idmap import find_ids
from proofbox.testing.needs import skip_unless_required

pytestmark = [pytest.mark.anyio, pytest.mark.container]


@pytest.mark.skipif(not find_ids().users, reason="there is one user only")
async def test_a_changed_user_entry_counts_from_the_next_command_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor made ahead knows the last user's entry, and takes it only if its files are still the same."""
    monkeypatch.setenv("PROOFBOX_STATE", str(tmp_path / "state"))
    try:
        host = await proofbox.Host.local("native")
    except Refused as refused:
        skip_unless_required("native", refused)
        raise
    change = "sed -i 's/^daemon:x:1:1:/daemon:x:4321:1:/' /etc/passwd; echo 'more:x:99:daemon' >> /etc/group"
    try:
        async with host.open_sandbox("host") as box:
            for _ in range(3):
                assert (await box.run("id -u; id -G", user="daemon")).stdout == "1\n1\n"
            assert (await box.run(change, user="root", stdin=b"")).ok
            for _ in range(3):
                assert (await box.run("id -u; id -G", user="daemon")).stdout == "4321\n1 99\n"
    finally:
        await host.aclose()
