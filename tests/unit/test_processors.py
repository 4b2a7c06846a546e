"""Which processors sandboxes get, and what they are shown of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from proofbox.host.cgroup import Place, plan_group
from proofbox.host.cgroup_apply import prepare, split_processors
from proofbox.host.processors import Processors, cpuinfo_of, stat_of
from proofbox.model.limits import Limits

CPUINFO = "".join(f"processor\t: {n}\nmodel name\t: some\n\n" for n in range(3)) + "Hardware\t: board\n"
STAT = "cpu  6 60\ncpu0 1 10\ncpu1 2 20\ncpu2 3 30\nintr 5 5 5\nctxt 7\nbtime 8\n"


def test_the_fewest_held_are_chosen(tmp_path: Path) -> None:
    """Four sandboxes of two on four processors: each processor is held twice, whoever went in between."""
    processors = Processors(tmp_path, range(4))
    for _ in range(5):
        held = [each for name in "abcd" for each in processors.take(name, 2)]
        assert sorted(held) == [0, 0, 1, 1, 2, 2, 3, 3]
        for name in "abcd":
            processors.give_back(name)
            processors.give_back(name)


@pytest.mark.parametrize(("cpus", "seen"), [(0.2, 1), (1.0, 1), (1.5, 2), (2.01, 0), (3.0, 0), (64.0, 0), (None, 0)])
def test_a_limit_is_rounded_up(tmp_path: Path, cpus: float | None, seen: int) -> None:
    """A sandbox that may use all that there are is left alone."""
    assert len(Processors(tmp_path, range(3)).take("a", cpus)) == seen


def test_files_show_the_chosen_only(tmp_path: Path) -> None:
    """Other processors are gone from both files, and the sums are those of the chosen."""
    assert cpuinfo_of(CPUINFO, (0, 2)).count("processor") == 2
    assert "processor\t: 1" not in cpuinfo_of(CPUINFO, (0, 2))
    assert "Hardware" in cpuinfo_of(CPUINFO, (1,))
    assert stat_of(STAT, (0, 2)) == "cpu  4 40\ncpu0 1 10\ncpu2 3 30\nctxt 7\nbtime 8\n"


def test_what_is_shown_is_made_once_and_removed(tmp_path: Path) -> None:
    """The files are whole, readable for everybody, and gone with ``remove``."""
    processors = Processors(tmp_path / "files", [0, 1])
    assert processors.shown(()) == ()
    first = processors.shown(processors.take("a", 1))
    again = processors.shown(processors.take("b", 1))
    assert [target for target, _ in first] == ["/proc/cpuinfo", "/proc/stat", "/sys"]
    assert first != again
    online = Path(dict(first)["/sys"], "devices/system/cpu/online")
    assert online.read_text().strip() in "01"
    assert online.stat().st_mode & 0o777 == 0o644
    assert processors.remove() == 1
    assert processors.remove() == 0


@pytest.mark.parametrize("version", [1, 2])
def test_a_plan_has_processors_where_a_cpuset_can_be_had(version: int) -> None:
    """The group is told before it is joined; without a limit on processors, v1 makes no group for it at all."""
    root = Path("/groups")
    place = Place(version, {"cpu": root / "cpu", "cpuset": root / ("cpuset" if version == 1 else "cpu")})
    plan = plan_group(place, "own", "box", Limits(cpus=1), (1,))
    names = [f"{Path(path).name}={value}" for path, value in plan.values]
    assert names.index("cpuset.cpus=1") < names.index("cgroup.procs=")
    assert not [path for path, _ in plan_group(place, "own", "box", Limits()).values if "cpuset.cpus" in path]


def test_v1_groups_get_what_the_group_above_has(tmp_path: Path) -> None:
    """A v1 group that has no processors or no memory nodes lets nobody in: it gets those of the one above."""
    groups = [tmp_path, tmp_path / "proofbox", tmp_path / "proofbox/own"]
    for group in groups:
        group.mkdir(exist_ok=True)
        for name in ("cpus", "mems"):
            (group / f"cpuset.{name}").write_text("\n")
            (group / f"cpuset.effective_{name}").write_text("0-3\n" if name == "cpus" else "0\n")
    (groups[1] / "cpuset.cpus").write_text("0-1\n")
    split_processors(Place(1, {"cpuset": tmp_path}), "own")
    assert [(group / "cpuset.cpus").read_text() for group in groups] == ["\n", "0-1\n", "0-3\n"]
    assert [(group / "cpuset.mems").read_text() for group in groups] == ["\n", "0\n", "0\n"]
    assert (groups[2] / "cgroup.clone_children").read_text() == "1"


def test_v2_groups_hand_the_controller_down_only_when_it_is_needed(tmp_path: Path) -> None:
    """``prepare`` leaves it alone."""
    groups = [tmp_path, tmp_path / "proofbox", tmp_path / "proofbox/own"]
    for group in groups:
        group.mkdir(exist_ok=True)
        (group / "cgroup.subtree_control").write_text("cpu")
    place = Place(2, {"cpu": tmp_path, "cpuset": tmp_path})
    prepare(place, "own")
    assert {(group / "cgroup.subtree_control").read_text() for group in groups} == {"cpu"}
    split_processors(place, "own")
    assert {(group / "cgroup.subtree_control").read_text() for group in groups} == {"+cpuset"}


@pytest.mark.parametrize("version", [1, 2])
def test_where_the_kernel_does_not_let_us_the_place_is_without(version: int, tmp_path: Path) -> None:
    """Then sandboxes are told by affinity; all other controllers stay."""
    place = Place(version, {"cpu": tmp_path, "cpuset": tmp_path / "nothing here"})
    assert split_processors(place, "own").directories == {"cpu": tmp_path}


@pytest.mark.parametrize(("version", "file"), [(1, "memory.soft_limit_in_bytes"), (2, "memory.low")])
def test_a_reservation_of_memory_is_another_value_than_the_limit(version: int, file: str) -> None:
    """Both are written, each into its own file."""
    place = Place(version, {"memory": Path("/groups")})
    values = dict(plan_group(place, "own", "box", Limits(memory=1 << 20, memory_reserve=1 << 19)).values)
    assert values[f"/groups/proofbox/own/box/{file}"] == str(1 << 19)
    assert str(1 << 20) in values.values()


def test_a_reservation_holds_below_groups_that_allow_it() -> None:
    """Version 2 protects a group no more than what is above it: our own groups there are bounded by nothing."""
    place = Place(2, {"memory": Path("/groups")})
    values = dict(plan_group(place, "own", "box", Limits(memory_reserve=1 << 19)).values)
    assert [values.get(f"/groups/{group}/memory.low") for group in ("proofbox", "proofbox/own")] == ["max", "max"]
    assert not any("memory.low" in path for path, _ in plan_group(place, "own", "box", Limits()).values)
