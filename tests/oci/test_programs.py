"""Which OCI runtime is meant, and what a probe finds of one that is given by its path."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proofbox.errors import InvalidInput, Refused
from proofbox.host.owner import Owner
from proofbox.runtime import registry
from proofbox.runtimes.oci import OciRuntime, proof
from proofbox.runtimes.oci.programs import find_program, path_of
from proofbox.sandbox.host import Host

pytestmark = pytest.mark.anyio

HANGS = """#!/bin/sh
if [ "$1" = --version ]; then echo "runsc version 1"; exit; fi
sleep {marker} & setsid sleep {marker} & exec sleep {marker}
"""


def program(directory: Path, text: str) -> Path:
    """A program that anybody may run."""
    made = directory / "program"
    made.write_text(text)
    made.chmod(0o755)
    return made


@pytest.fixture
async def owner() -> AsyncIterator[Owner]:
    """An owner of this test alone."""
    made = Owner.register()
    yield made
    made.forget()


@pytest.mark.parametrize(
    ("text", "name", "level"),
    [("runsc version 1", "runsc", "user-kernel"), ("crun version 1", "crun", "container"), ("x", "other", "container")],
)
def test_a_program_at_a_path_is_asked_what_it_is(tmp_path: Path, text: str, name: str, level: str) -> None:
    """Its file may be called as it likes; of what is not known no more is believed than a container."""
    made = program(tmp_path, f"#!/bin/sh\necho {text}\n")
    found = find_program(str(made))
    assert found is not None
    assert (found.name, found.make.level, found.path) == (name, level, str(made))
    assert path_of(str(made)) == str(made)


def test_a_variable_says_where_a_named_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It wins over PATH, and one that is not there is not replaced by another."""
    made = program(tmp_path, "#!/bin/sh\n")
    monkeypatch.setenv("PROOFBOX_RUNSC", str(made))
    monkeypatch.setenv("PROOFBOX_RUNSC_PLATFORM", "kvm")
    found = find_program("runsc")
    assert found is not None
    assert (found.path, found.platform, found.make.platforms) == (str(made), "kvm", ("kvm",))
    monkeypatch.setenv("PROOFBOX_RUNSC", str(tmp_path / "gone"))
    assert find_program("runsc") is None


async def test_a_name_that_is_no_path_is_refused() -> None:
    """A relative one would be another program elsewhere."""
    with pytest.raises(InvalidInput, match="absolute path"):
        registry.runtime("oci:bin/crun")


@pytest.mark.parametrize(
    ("does", "told"), [("true", "it ended before"), ("echo it is broken >&2; exit 3", "it is broken")]
)
async def test_a_program_that_runs_no_sandbox_is_refused_with_what_it_did(tmp_path: Path, does: str, told: str) -> None:
    """Whatever it says of itself; and with its words, whatever status it has for them."""
    tmp_path.chmod(0o755)
    made = program(tmp_path, f'#!/bin/sh\n[ "$1" != --version ] || exec echo "crun version 99"\n{does}\n')
    with pytest.raises(Refused, match="cannot run a sandbox here") as refused:
        await Host.local(f"oci:{made}")
    assert told in str(refused.value)


async def test_what_variables_insist_on_is_named_where_it_does_not_work(
    owner: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To install what is there, or a newer one, would mend nothing."""
    monkeypatch.setenv("PROOFBOX_RUNSC", str(tmp_path))
    (found,) = (await OciRuntime(owner, "runsc").probe()).missing
    assert found.what == f"PROOFBOX_RUNSC={tmp_path} names no program that can be run"
    monkeypatch.setenv("PROOFBOX_RUNSC", str(program(tmp_path, "#!/bin/sh\n")))
    monkeypatch.setenv("PROOFBOX_RUNSC_PLATFORM", "systrap")
    (found,) = (await OciRuntime(owner, "runsc").probe()).missing
    assert found.remedy.startswith("unset PROOFBOX_RUNSC_PLATFORM")
    monkeypatch.setattr(proof, "GVISOR_FILES", 1 << 40)
    (found,) = (await OciRuntime(owner, "runsc").probe()).missing
    assert found.remedy.startswith("ulimit -n")


@pytest.mark.container
async def test_a_platform_that_hangs_is_ended_with_all_that_it_started(
    owner: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is given up after the deadline, the next one is tried, and nothing of them is left."""
    marker = f"7{os.getpid()}31"
    made = program(tmp_path, HANGS.format(marker=marker))
    tmp_path.chmod(0o755)
    monkeypatch.setattr(proof, "DEADLINE", 0.5)
    probe = await OciRuntime(owner, str(made)).probe()
    assert not probe.usable
    assert [
        f"platform {name} " in item.what for name, item in zip(("systrap", "ptrace", "kvm"), probe.missing, strict=True)
    ]
    assert all("did not answer within 0.5 s" in item.what for item in probe.missing)
    assert all("PROOFBOX_RUNSC" in item.remedy for item in probe.missing)
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if marker.encode() in _read(path)]
    assert left == []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.container
async def test_one_at_a_path_is_used_as_the_named_one(tmp_path: Path) -> None:
    """A copy of crun under another name makes sandboxes, of level container and never more."""
    found = find_program("crun")
    if found is None:
        pytest.skip("there is no crun on this host")
    tmp_path.chmod(0o755)
    copied = shutil.copy(found.path, tmp_path / "another-name")
    try:
        host = await Host.local(f"oci:{copied}")
    except Refused as refused:
        pytest.skip(str(refused))
    async with host.open_sandbox("host") as box:
        assert (await box.run("echo here")).stdout == "here\n"
        told = await box.isolation()
    assert (told.runtime, told.level, told.platform) == (f"oci:{copied}", "container", "")
    with pytest.raises(Refused, match="'container'"):
        await Host.local(f"oci:{copied}", "user-kernel")
