"""What is handed to an OCI runtime: the configuration and the command, as data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proofbox.host.idmap import Ids
from proofbox.kit.binary import guest_path
from proofbox.model.limits import Limits
from proofbox.model.spec import SandboxSpec, Volume
from proofbox.runtimes.oci import bundle
from proofbox.runtimes.oci.config import GUEST, Confined, bundle_config
from proofbox.runtimes.oci.programs import MAKES
from proofbox.runtimes.oci.proof import no_program

CONFINED = Confined(("CAP_CHOWN",), ("/proc/kcore",), ("/proc/sys",), {"defaultAction": "SCMP_ACT_ERRNO"})


def config(base: int | None = 0x2000_0000, make: str = "crun", **asked: Any) -> dict[str, Any]:
    """A configuration of a sandbox with these extras."""
    spec = SandboxSpec(id="box", template="t", limits=Limits(), **asked)
    mapped = None if base is None else Ids(full=True, uid=0, gid=0).map_of(base)
    return bundle_config(spec, "/mnt", mapped, [GUEST, "/data"], CONFINED, MAKES[make])


def kinds(made: dict[str, Any]) -> set[str]:
    """The types of its namespaces."""
    return {space["type"] for space in made["linux"]["namespaces"]}


def test_every_namespace_is_private() -> None:
    """Network, users and cgroups included; none is joined by a path."""
    made = config()
    assert kinds(made) == {"pid", "ipc", "uts", "mount", "cgroup", "network", "user"}
    assert all("path" not in space for space in made["linux"]["namespaces"])
    assert made["linux"]["uidMappings"] == [{"containerID": 0, "hostID": 0x2000_0000, "size": 65536}]


def test_the_host_network_is_shared_only_when_asked_for() -> None:
    """And nothing else with it."""
    assert kinds(config()) - kinds(config(network="host")) == {"network"}


def test_privileges_are_dropped() -> None:
    """No new privileges, the same few capabilities in each set and none to inherit, no core dumps."""
    process = config()["process"]
    assert process["noNewPrivileges"] is True
    assert process["capabilities"] == dict.fromkeys(("bounding", "effective", "permitted"), ("CAP_CHOWN",))
    assert {"type": "RLIMIT_CORE", "soft": 1, "hard": 1} in process["rlimits"]
    assert process["env"] == []


def test_no_mount_of_a_sandbox_shows_the_host_writable() -> None:
    """What is bound from the host is read-only, but for the part of the sandbox's own layer under /dev/shm."""
    bound = {mount["destination"]: mount["options"] for mount in config()["mounts"] if mount["type"] == "bind"}
    assert set(bound) == {"/dev/shm", GUEST, "/data"}
    assert all("ro" in options for target, options in bound.items() if target != "/dev/shm")
    assert all({"nosuid", "nodev"} <= set(options) for options in bound.values())


def test_a_kernel_of_its_own_gets_what_another_needs_not() -> None:
    """runsc: the channel as standard input, no filter (it is too long for it), /tmp from the layer; the guest is told
    the limit on processes (the usual one, where nothing outside holds any), and to make none ahead.
    """
    made = config(make="runsc")
    assert made["process"]["args"] == [GUEST, "guest", "0", "no-spare", "processes", "272"]
    assert "seccomp" not in made["linux"]
    bound = {mount["destination"]: mount["source"] for mount in made["mounts"] if mount["type"] == "bind"}
    assert bound["/tmp"] == "/mnt/rootfs/tmp"
    spec = SandboxSpec(id="box", template="t", limits=Limits(processes=10))
    limited = bundle_config(spec, "/mnt", None, [], CONFINED, MAKES["runsc"], proof=True)
    assert limited["process"]["args"] == [GUEST, "guest", "0", "proof", "no-spare", "processes", "26"]
    assert config()["process"]["args"] == [GUEST, "guest", "3"]


def test_with_one_id_no_other_is_named() -> None:
    """Where only one id is mapped, a terminal cannot belong to group 5."""
    made = config(base=None)
    assert "user" not in kinds(made)
    assert "uidMappings" not in made["linux"]
    assert not any("gid=5" in mount["options"] for mount in made["mounts"])


def test_the_host_network_brings_its_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """resolv.conf and hosts are shown, unless a volume of the caller's has their place."""
    program = tmp_path / "guest"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PROOFBOX_GUEST", str(program))
    guest_path.cache_clear()
    volume = Volume("/tmp", "/etc/hosts")
    spec = SandboxSpec(id="box", template="t", limits=Limits(), network="host", volumes=(volume,))
    try:
        shown = bundle.shown_files(spec, ())
    finally:
        guest_path.cache_clear()
    assert (str(program), GUEST) == shown[0]
    assert ("/tmp", "/etc/hosts") in shown
    assert ("/etc/hosts", "/etc/hosts") not in shown


def test_a_missing_program_is_named_with_its_remedy() -> None:
    """What to install is in the message."""
    assert "apt install runc" in str(no_program("runc")[0])
    assert "crun or runc" in str(no_program(None)[0])
