"""What a failed step says leads to one cause and one remedy; here those that this machine cannot be brought into."""

from __future__ import annotations

from pathlib import Path

import pytest

from proofbox.host.remedies import explain
from proofbox.runtime.contract import Missing


def host(root: Path, **switches: str) -> Path:
    """A host with these files below /proc/sys."""
    for name, value in switches.items():
        path = root / "proc/sys" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    return root


@pytest.mark.parametrize(
    "step", ["clone with a new user namespace: Operation not permitted", "crun: unshare: EPERM not permitted"]
)
def test_user_namespaces_for_root_only(tmp_path: Path, step: str) -> None:
    """Debian's switch, which other kernels do not have."""
    what, remedy = explain(step, host(tmp_path, kernel__unprivileged_userns_clone="0"))
    assert what == f"user namespaces are off for everybody but root: {step}"
    assert remedy == "sysctl -w kernel.unprivileged_userns_clone=1"


@pytest.mark.parametrize(
    "step", ["write uid_map 0 1000 1: Operation not permitted", "make mounts private: Permission denied"]
)
def test_user_namespaces_without_capabilities(tmp_path: Path, step: str) -> None:
    """Ubuntu's: the namespace is made, and the first thing that it is for fails."""
    restricted = host(tmp_path, kernel__apparmor_restrict_unprivileged_userns="1", user__max_user_namespaces="9")
    what, remedy = explain(step, restricted)
    assert what.startswith("AppArmor takes capabilities away in user namespaces")
    assert remedy.startswith("sysctl -w kernel.apparmor_restrict_unprivileged_userns=0")


def test_a_limit_of_somebody_above_is_no_switch_of_this_host(tmp_path: Path) -> None:
    """No kind is limited to 0 here, and still no more can be made."""
    what, remedy = explain("clone with a new user namespace: No space left on device", host(tmp_path))
    assert what.startswith("a limit on namespaces is used up: ")
    assert remedy.startswith("sysctl -w user.max_user_namespaces=65536")


def test_a_kernel_without_overlay(tmp_path: Path) -> None:
    """Told apart from one where it is there and refuses the place."""
    _, remedy = explain("sandbox probe-1: mount overlay: lowerdir=/0: No such device", tmp_path)
    assert remedy == "modprobe overlay (CONFIG_OVERLAY_FS)"


def test_what_is_not_known_is_told_as_it_is(tmp_path: Path) -> None:
    """In one line, without the number of the sandbox that was tried, and without a remedy that nobody knows."""
    assert explain("sandbox probe-1a: join cgroup\n  /x: Device or resource busy", tmp_path) == (
        "join cgroup /x: Device or resource busy",
        "",
    )


def test_a_lack_survives_being_a_sentence() -> None:
    """A refusal carries it as text, and doctor has it in two parts again."""
    for lack in (Missing("no crun on this host", "apt install crun"), Missing("nothing helps")):
        assert Missing.of(str(lack)) == lack
