"""Overlays that are mounted by the host's root, as before Linux 6.6: here whatever the kernel is."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import anyio
import pytest
from tests.native.conftest import Eventually, OpenBox
from tests.native.test_endings import blanks, launcher_of, name_of

from proofbox.errors import CreateFailed
from proofbox.host.idmap import find_ids
from proofbox.host.layers import takes_marks
from proofbox.model.template import Template
from proofbox.runtimes.native import NativeRuntime

pytestmark = [pytest.mark.container, pytest.mark.anyio]

TRIED = """
import os
def tried(what, *words):
    try: what(*words)
    except PermissionError: return
    print(what.__name__, *words, 'worked')
tried(os.mknod, '/tmp/null', 0o20666, os.makedev(1, 3))
tried(os.mknod, '/tmp/gone', 0o20000, 0)
for name in ('trusted.overlay.opaque', 'trusted.overlay.redirect'):
    tried(os.setxattr, '/etc', name, b'y')
"""


@pytest.fixture(autouse=True)
def by_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher is told so."""
    if not find_ids().full or not takes_marks("trusted"):
        pytest.skip("only the host's root mounts them so")
    monkeypatch.setattr("proofbox.runtimes.native.launcher.marked_by_root", lambda ids: True)


def mounters(launcher: int) -> list[int]:
    """The launcher's children that mount overlays."""
    found = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return [int(pid) for pid in found if name_of(pid) == "proofbox-mounts"]


async def test_what_root_mounted_is_the_sandboxs_own_and_gives_no_rights(
    runtime: NativeRuntime, open_box: OpenBox, template: Template, eventually: Eventually
) -> None:
    """Directories of the template are removed and made anew; neither devices nor the marks of root can be made."""
    held = Path(template.layers[0].source, "etc/held")
    held.mkdir()
    (held / "file").write_text("of the template")
    async with open_box() as box:
        assert (await box.run("grep -c 'overlay.*userxattr' /proc/self/mountinfo"))[1] == "0\n"
        assert await box.run("cd /etc && rm -r held && mkdir held && ls -A held && rm -r held && ! test -e held") == (
            0,
            "",
        )
        assert await box.run(f'python3 -c "{TRIED}"') == (0, "")
        assert (await box.run("touch /usr/mine && stat -c %u:%g /usr/mine"))[1] == "0:0\n"
        code, words = await box.run("cat /dev/zero > /etc/full; stat -c %s /etc/full; rm /etc/full")
        assert "No space left" in words, code
        assert await eventually(lambda: not mounters(launcher_of(runtime).pid))
    assert (held / "file").read_text() == "of the template"


@pytest.mark.parametrize("dies", ["who mounts", "the sandbox"])
async def test_a_death_while_overlays_are_mounted_ends_the_start(
    runtime: NativeRuntime, open_box: OpenBox, template: Template, eventually: Eventually, dies: str
) -> None:
    """It fails, with nothing left of either, and the next one starts."""
    async with open_box(name="first"):
        launcher = launcher_of(runtime).pid
        assert await eventually(
            lambda: len(blanks(launcher)) == 1 and not mounters(launcher)
        )  # the first one's is gone
        (blank,) = blanks(launcher)
        os.kill(blank, signal.SIGSTOP)

        async def fails() -> None:
            with pytest.raises(CreateFailed, match="overlay" if dies == "who mounts" else "ended at once"):
                async with open_box(name="second"):
                    pass

        async with anyio.create_task_group() as group:
            group.start_soon(fails)
            assert await eventually(lambda: len(mounters(launcher)) == 1)
            os.kill(mounters(launcher)[0] if dies == "who mounts" else blank, signal.SIGKILL)
            if dies == "who mounts":
                assert await eventually(lambda: not mounters(launcher))
                os.kill(blank, signal.SIGCONT)
        assert await eventually(lambda: not mounters(launcher))
        async with open_box(name="third") as box:
            assert await box.run("echo on") == (0, "on\n")
