"""Directories that go in and out while the agent swaps what lies in them for links, as fast as it can."""

from __future__ import annotations

from pathlib import Path

from tests.escape.conftest import Inside

from proofbox.errors import FileFailed, OperationFailed

SWAPS = """
import os
os.makedirs("/tmp/race/top/d/deep")
os.chmod("/tmp/race/top", 0o777)
os.chmod("/tmp/race/top/d", 0o777)
open("/tmp/race/top/d/mine", "w").write("mine")
os.symlink(TARGET, "/tmp/race/link")
print("ready", flush=True)
while True:
    os.rename("/tmp/race/top/d", "/tmp/race/held")
    os.rename("/tmp/race/link", "/tmp/race/top/d")
    os.rename("/tmp/race/top/d", "/tmp/race/link")
    os.rename("/tmp/race/held", "/tmp/race/top/d")
"""
ROUNDS = 20


async def test_a_tree_is_neither_read_nor_written_through_what_is_swapped(inside: Inside, tmp_path: Path) -> None:
    """By the sandbox's root, for an agent that may not: what the link leads to is not in what comes out, and nothing is
    put there; here the link is a link, or is not at all.
    """
    (tmp_path / "in/d").mkdir(parents=True)
    (tmp_path / "in/d/planted").write_text("planted")
    async with inside.open_box() as box:
        await box.write("/closed/secret", "secret", mode=0o600)
        await box.files.mkdir("/tmp/race", mode=0o777)
        await box.files.chmod("/tmp/race", 0o777)
        program = SWAPS.replace("TARGET", "'/closed'")
        swaps = await box.start(["python3", "-I", "-S", "-c", program], user=inside.user)
        async for _ in swaps.output():
            break
        for number in range(ROUNDS):
            out = tmp_path / f"out{number}"
            try:
                await box.files.upload(tmp_path / "in", "/tmp/race/top", user="root")
                await box.files.download("/tmp/race/top", out, user="root", links="keep")
            except (FileFailed, OperationFailed):
                assert not out.exists()
            assert not list(tmp_path.glob("out*/d/secret"))
        await swaps.kill()
        assert [entry.path for entry in await box.files.list("/closed")] == ["secret"]
