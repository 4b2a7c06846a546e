"""A sandbox with a limit on processors: by a cpuset group where there is one, else by what its init is told."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.native.conftest import OpenBox

from proofbox.errors import CreateFailed
from proofbox.model.limits import Limits
from proofbox.model.spec import SandboxSpec
from proofbox.model.template import Layer, Template
from proofbox.runtimes.native import NativeRuntime

pytestmark = [pytest.mark.anyio, pytest.mark.container]

ONE = Limits(cpus=1.0)
COUNT = "nproc; grep -c ^processor /proc/cpuinfo; cat /sys/devices/system/cpu/online"
WIDEN = "taskset -p ffff $$ >/dev/null 2>&1; nproc"


@pytest.fixture(autouse=True)
def several(runtime: NativeRuntime) -> None:
    """One processor cannot be divided, and without the cpu controller the limit is refused."""
    if len(os.sched_getaffinity(0)) < 2 or "cpu" not in runtime._place.directories:
        pytest.skip("this host has a single processor, or no limit on processors")


async def test_a_group_keeps_programs_to_their_processors(runtime: NativeRuntime, open_box: OpenBox) -> None:
    """No program can widen what a cpuset allows, and the group goes with the sandbox."""
    root = runtime._place.directories.get("cpuset")
    if root is None:
        pytest.skip("no cpuset control group")
    async with open_box(limits=ONE) as box:
        group = Path(box.handle.plan.by_controller["cpuset"])
        assert (await box.run(COUNT))[1].split()[:2] == ["1", "1"]
        assert (await box.run(WIDEN))[1] == "1\n"
        assert (group / "cpuset.cpus").read_text().strip() in {str(each) for each in os.sched_getaffinity(0)}
    assert not group.is_dir()


async def test_without_a_cpuset_its_init_is_told(runtime: NativeRuntime, open_box: OpenBox) -> None:
    """Programs count the same; that they can widen it again is a note of the probe."""
    place = runtime._place
    runtime._place = replace(
        place, directories={each: path for each, path in place.directories.items() if each != "cpuset"}
    )
    try:
        async with open_box(limits=ONE) as box:
            assert box.handle.affinity
            assert (await box.run(COUNT))[1].split() == ["1", "1", str(box.handle.affinity[0])]
            assert (await box.run("sh -c nproc"))[1] == "1\n"
            assert int((await box.run(WIDEN))[1]) > 1
        assert any("cpuset" in note for note in (await runtime.probe()).notes)
    finally:
        runtime._place = place


async def test_who_has_no_limit_is_left_alone(runtime: NativeRuntime, open_box: OpenBox) -> None:
    """All processors, no group of it, no file mounted over another."""
    async with open_box() as box:
        assert int((await box.run("nproc"))[1]) == len(os.sched_getaffinity(0))
        assert not any("cpuset" in path for path in box.handle.plan.directories) or runtime._place.version == 2
        assert "cpuinfo" not in (await box.run("cat /proc/self/mountinfo"))[1]


async def test_processors_are_given_back_however_it_ends(
    runtime: NativeRuntime, open_box: OpenBox, template: Template
) -> None:
    """Also by a sandbox that never stood."""
    async with open_box(limits=ONE):
        assert len(runtime._processors._held) == 1
        broken = msgspec.structs.replace(template, layers=(*template.layers, Layer("/opt", "/nowhere")))
        with pytest.raises(CreateFailed):
            await runtime.create(SandboxSpec(id="broken", template="t", limits=ONE), broken)
        assert list(runtime._processors._held) == ["box"]
    assert not runtime._processors._held
