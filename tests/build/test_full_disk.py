"""A build on a disk that becomes full: what was kept is whole, nothing half-made is left, and the next one goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.container, pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts on the host")]

BUILD = """
import os, subprocess, sys
from pathlib import Path
import anyio
from proofbox.build.api import build_template
from proofbox.errors import Refused, StoreFailed
from proofbox.templates.store import open_store

def resize(home, size):
    subprocess.run(["mount", "-o", f"remount,size={size}", home], check=True)

async def main(home, recipe):
    resize(home, "50%")
    try:
        await build_template(recipe, "made")
    except Refused as refused:
        print("refused", refused)
        return
    space = os.statvfs(home)
    resize(home, (space.f_blocks - space.f_bfree) * space.f_frsize + (20 << 20))
    with open(recipe, "a") as file:
        file.write('[[steps]]\\nrun = "head -c 50000000 /dev/urandom > /big"\\n')
    try:
        await build_template(recipe, "made")
    except StoreFailed as failed:
        print(failed)
    left = [*(home / "making").iterdir(), *home.rglob(".*.????????")]
    print(left, [each.name for each in open_store().list()], open_store().collect())
    resize(home, "50%")
    kept = []
    made = await build_template(recipe, "made", tell=lambda event: kept.append(getattr(event, "kept", None)))
    print([each for each in kept if each is not None], made.name)

anyio.run(main, Path(sys.argv[1]), sys.argv[2])
"""
RECIPE = """
base = "host"
[[steps]]
run = "echo first > /first"
"""


def test_a_build_on_a_full_disk_is_told_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    """The step that does not fit is named with its remedy; the one before it is kept, and not made again."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    home = tmp_path / "home"
    home.mkdir()
    mount = 'mount -t tmpfs -o mode=0700 home "$1" && exec "$2" -c "$3" "$1" "$4"'
    ran = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount, "sh", home, sys.executable, BUILD, recipe],
        env=os.environ | {"PROOFBOX_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.stdout.startswith("refused"):
        pytest.skip(ran.stdout)
    assert ran.returncode == 0, ran.stderr
    told, left, again = ran.stdout.splitlines()
    assert "No space left on device" in told
    assert "`proofbox gc` removes what nothing needs" in told
    assert left == "[] ['made'] 0"
    assert again == "[True, False] made"
