"""What a host lacks is named once, with what mends it. Every lack is a real one, in namespaces of the test's own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Run

from proofbox.errors import Refused
from proofbox.host.idmap import find_ids
from proofbox.host.seccomp.policy import machine
from proofbox.host.unclean import note

pytestmark = pytest.mark.container

NUMBERS = json.loads((Path(sys.modules[machine.__module__].__file__ or "").parent / "syscalls.json").read_text())

DENY = """
import ctypes, struct, sys
error, numbers, argv = int(sys.argv[1]), list(map(int, sys.argv[2].split(","))), sys.argv[3:]
steps = [(0x20, 0, 0, 0)]
steps += [(0x15, len(numbers) - index, 0, number) for index, number in enumerate(numbers)]
steps += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050000 | error)]
filter = b"".join(struct.pack("=HBBI", *step) for step in steps)
buffer = ctypes.create_string_buffer(filter)
program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(buffer)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0
import os
os.execv(argv[0], argv)
"""
"""Runs a program for which some system calls fail with an error, as a container's filter has it."""

KEYS = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
add_key, keyctl, parent = int(sys.argv[1]), int(sys.argv[2]), os.getpid()
def took(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if libc.syscall(add_key, b"user", os.urandom(8).hex().encode(), b"x", 1, -3) >= 0:
            return True
        time.sleep(0.001)
    return False
assert libc.syscall(keyctl, 1, None) >= 0
while took(0.5):  # those of sandboxes that have ended come back late
    pass
if os.fork() == 0:
    os.closerange(0, 3)
    while os.getppid() == parent:
        took(0.1)
    os._exit(0)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Runs a program whose user has no key left as long as it lives."""

Doctor = Callable[..., dict[str, list[dict[str, str]]]]


def within(script: str) -> list[str]:
    """What runs its arguments in a user and a mount namespace of their own, after a shell text."""
    return ["unshare", "-Urm", "sh", "-c", f'set -e; {script}; exec "$@"', "sh"]


def denied(error: int, *names: str) -> list[str]:
    """What runs its arguments without these system calls."""
    numbers = ",".join(str(NUMBERS[machine()][name]) for name in names)
    return [sys.executable, "-c", DENY, str(error), numbers]


@pytest.fixture
def doctor(argv: list[str], environment: dict[str, str], tmp_path: Path) -> Doctor:
    """What each of these runtimes lacks, and under the empty name what all of them do. ``before``: what runs it."""
    here = environment | {"PROOFBOX_HOME": str(tmp_path / "home")}

    def run(*runtimes: str, before: list[str] | None = None, **env: str) -> dict[str, list[dict[str, str]]]:
        missing: dict[str, list[dict[str, str]]] = {}
        for runtime in runtimes:
            words = [*(before or []), *argv, "doctor", "--json", "--runtime", runtime]
            ran = subprocess.run(words, capture_output=True, text=True, env=here | env, timeout=120, check=False)
            assert ran.stdout.startswith("{"), ran.stdout + ran.stderr
            told = json.loads(ran.stdout)
            assert told["ok"] is (ran.returncode == 0)
            missing |= {entry["name"]: entry["missing"] for entry in told["runtimes"]} | {"": told["missing"]}
        return missing

    try:
        subprocess.run([*within("true"), "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a namespace to spoil cannot be made here: {error}")
    return run


def only(found: dict[str, list[dict[str, str]]], runtime: str) -> tuple[str, str]:
    """The one thing that it lacks, and the remedy."""
    (item,) = found[runtime]
    return item["what"], item["remedy"]


@pytest.mark.parametrize(
    "kind",
    ["user", "mnt", "cgroup", *(pytest.param(each, marks=pytest.mark.slow) for each in ("pid", "net", "ipc", "uts"))],
)
def test_a_limit_on_namespaces_is_named_with_its_switch(doctor: Doctor, kind: str) -> None:
    """Each kind has a switch of its own, whichever step of a start it is that fails."""
    spoiled = within(f"echo 0 > /proc/sys/user/max_{kind}_namespaces")
    what, remedy = only(doctor("native", before=spoiled), "native")
    assert what.startswith(f"{kind} namespaces are limited to 0: ")
    assert remedy == f"sysctl -w user.max_{kind}_namespaces=65536"


def test_an_oci_runtime_that_is_stopped_by_a_switch_gets_the_same_remedy(doctor: Doctor) -> None:
    """Although it is the runtime's own step that fails, and its own words that tell of it."""
    found = doctor("crun", before=within("echo 0 > /proc/sys/user/max_net_namespaces"))
    what, remedy = only(found, "crun")
    if what == "no crun on this host":
        pytest.skip(what)
    assert "crun cannot run a sandbox here: net namespaces are limited to 0: " in what
    assert remedy == "sysctl -w user.max_net_namespaces=65536"


def test_a_runtime_that_is_not_installed_is_named_with_its_package(doctor: Doctor) -> None:
    """Looked for where programs are, and nowhere else."""
    found = doctor("crun", before=["/usr/bin/env", "PATH=/nonexistent"])
    assert only(found, "crun") == ("no crun on this host", "apt install crun")


@pytest.mark.parametrize("runtime", ["process", pytest.param("native", marks=pytest.mark.slow)])
def test_a_guest_that_does_not_run_is_told(doctor: Doctor, tmp_path: Path, runtime: str) -> None:
    """It is not found out only when the first sandbox is wanted."""
    junk = tmp_path / "junk"
    junk.write_text("no program")
    junk.chmod(0o755)
    what, remedy = only(doctor(runtime, PROOFBOX_GUEST=str(junk)), runtime)
    assert what.startswith("the guest program is none for this machine: ")
    assert "guest/build.sh" in remedy


def test_too_few_open_files_are_told_with_their_number(doctor: Doctor) -> None:
    """Whoever meets the limit, the client, its launcher or the sandbox; here it is the launcher's start."""
    few = ["sh", "-c", 'ulimit -n 10; exec "$@"', "sh"]
    what, remedy = only(doctor("native", before=few), "native")
    assert what.startswith("this process may open 10 files only (at most 10): ")
    assert remedy.startswith("ulimit -n 65536")


def test_places_that_cannot_be_written_are_named_with_their_variable(doctor: Doctor, tmp_path: Path) -> None:
    """Read-only or full, for the state of live sandboxes and for templates."""
    place = tmp_path / "place"
    place.mkdir()
    readonly = within(f"mount -t tmpfs -o ro none {place}")
    full = within(f"mount -t tmpfs -o size=4k none {place}; head -c 4096 /dev/zero > {place}/fill")
    inodes = within(f"mount -t tmpfs -o nr_inodes=3 none {place}")
    for name, before, why in (
        ("PROOFBOX_HOME", readonly, "Read-only file system"),
        ("PROOFBOX_STATE", full, "No space left on device"),
    ):
        what, remedy = only(doctor("process", before=before, **{name: str(place / "here")}), "")
        assert why in what
        assert name in remedy
    what, remedy = only(doctor("native", before=inodes, PROOFBOX_STATE=str(place / "here")), "native")
    assert what.startswith("the file system on which state is kept is full: ")
    assert "PROOFBOX_STATE" in remedy


def test_a_masked_proc_is_named_as_a_containers(doctor: Doctor) -> None:
    """The kernel mounts no new one where the one that is there hides something."""
    masked = ["unshare", "-Urmpf", "--mount-proc", *within("mount -t tmpfs none /proc/sys")[2:]]
    what, remedy = only(doctor("native", before=masked), "native")
    assert what.startswith("a new /proc cannot be mounted because this one is partly masked")
    assert "systempaths=unconfined" in remedy


def test_a_template_on_an_overlay_of_overlays_is_told(doctor: Doctor, tmp_path: Path) -> None:
    """As in a container whose own file system is one: the kernel stacks two and no more."""
    place = tmp_path / "place"
    place.mkdir()
    stacked = within(
        f"cd {place}; mount -t tmpfs none {place}; cd {place}; mkdir l u w m u2 w2 m2; "
        "mount -t overlay -o userxattr,lowerdir=l,upperdir=u,workdir=w none m; "
        "mount -t overlay -o userxattr,lowerdir=m,upperdir=u2,workdir=w2 none m2; cd /"
    )
    what, remedy = only(doctor("native", before=stacked, PROOFBOX_STATE=f"{place}/m2/state"), "native")
    assert what.startswith("an overlay cannot lie on the file system of the template")
    assert "on a volume" in remedy


@pytest.mark.skipif(not find_ids().full, reason="without ranges of ids no file system has to map any")
def test_a_home_that_cannot_show_owners_is_told(doctor: Doctor, tmp_path: Path) -> None:
    """On an overlay, as in a container, all of a template would be nobody's inside."""
    place = tmp_path / "place"
    place.mkdir()
    mounts = "mkdir l u w m; mount -t overlay -o lowerdir=l,upperdir=u,workdir=w none m"
    script = f'set -e; mount -t tmpfs none {place}; cd {place}; {mounts}; cd /; exec "$@"'
    overlay = ["unshare", "-m", "sh", "-c", script, "sh"]
    what, remedy = only(doctor("process", before=overlay, PROOFBOX_HOME=f"{place}/m/home"), "")
    assert what.startswith(f"{place}/m/home is on a file system that maps no ids")
    assert remedy.startswith("set PROOFBOX_HOME to a directory on ext4")


def test_calls_that_a_filter_refuses_are_told_as_such(doctor: Doctor) -> None:
    """What a container's profile does: namespaces refused, a filter of our own refused, newer calls unknown."""
    what, remedy = only(doctor("native", before=denied(1, "unshare")), "native")
    assert what.startswith("namespaces are refused, most likely by a container's filter of system calls")
    assert "seccomp=unconfined" in remedy
    what, remedy = only(doctor("native", before=denied(38, "seccomp")), "native")
    assert what.startswith("no filter of system calls can be installed: ")
    assert "CONFIG_SECCOMP_FILTER" in remedy
    what, remedy = only(doctor("native", before=denied(38, "open_tree", "clone3")), "native")
    assert "lacks a call of that step: " in what
    assert remedy.startswith("needs Linux 5.12 or newer")


@pytest.mark.skipif(os.geteuid() == 0, reason="root has no such quota")
def test_a_user_without_a_key_left_is_told(doctor: Doctor) -> None:
    """Neither the sandbox nor its launcher gets a keyring of its own then, and none is shared."""
    numbers = NUMBERS[machine()]
    before = [sys.executable, "-c", KEYS, str(numbers["add_key"]), str(numbers["keyctl"])]
    what, remedy = only(doctor("native", before=before), "native")
    end = time.monotonic() + 60
    while _keys_left() < 100 and time.monotonic() < end:  # they come back late, and the next test needs some
        time.sleep(0.05)
    assert what.startswith("all keys that this user may have are in use: ")
    assert "kernel.keys.maxkeys" in remedy


def _keys_left() -> int:
    """Of this user's: its line says ``uid: usage count/instantiated keys/most bytes/most``."""
    lines = (line.split() for line in Path("/proc/key-users").read_text().splitlines())
    counts = next((words[3] for words in lines if words[0] == f"{os.geteuid()}:"), "0/1000")
    used, most = map(int, counts.split("/"))
    return most - used


def test_the_text_and_the_error_say_the_same(proofbox: Run) -> None:
    """What doctor prints for people, and what a sandbox that is asked for is refused with."""
    told = proofbox("doctor", "--runtime", "native", PROOFBOX_GUEST="/none").stdout.decode()
    ((what, remedy),) = re.findall(r"  missing      (.*)\n    remedy     (.*)\n", told)
    assert (what, remedy[:4]) == ("the guest program /none is missing or cannot be executed", "in a")
    refused = proofbox("sandbox", "run", "--runtime", "native", "host", "true", PROOFBOX_GUEST="/none")
    assert refused.returncode == 125
    assert str(Refused("runtime 'native'", (f"{what} ({remedy})",))) in refused.stderr.decode()


def test_unclean_starts_of_this_host_are_told(proofbox: Run, own_record: Path) -> None:
    """How many since when, and the last one: in the text and as JSON; nothing where there were none."""
    asked = ("doctor", "--runtime", "process")
    told = json.loads(proofbox(*asked, "--json", PROOFBOX_HOME=str(own_record)).stdout)
    assert told["unclean_starts"] == {"count": 0, "since": None, "last": None}
    assert b"unclean" not in proofbox(*asked, PROOFBOX_HOME=str(own_record)).stdout
    note("crun", "first", [])
    note("native", "small", ["files: + /etc/evil"])
    told = json.loads(proofbox(*asked, "--json", PROOFBOX_HOME=str(own_record)).stdout)["unclean_starts"]
    last = told.pop("last")
    assert re.fullmatch(r"[0-9-]{10}T[0-9:]{8}[+]00:00", last.pop("at"))
    assert told == {"count": 2, "since": told["since"]}
    assert last == {"runtime": "native", "template": "small", "differences": ["files: + /etc/evil"]}
    text = proofbox(*asked, PROOFBOX_HOME=str(own_record)).stdout.decode()
    assert f"unclean starts: 2 on this host since {told['since']}" in text
    assert "runtime native, template small" in text
    assert "files: + /etc/evil" in text
