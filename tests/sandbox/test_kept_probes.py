"""A slow probe is asked once for as long as nothing has changed; nothing else is believed, and nobody else's word."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

from proofbox.errors import CreateFailed, Refused
from proofbox.host.owner import state_dir
from proofbox.model.spec import SandboxSpec
from proofbox.model.template import Template
from proofbox.runtime import kept, registry
from proofbox.runtime.contract import Missing, Probe
from proofbox.runtimes.fake import FakeRuntime
from proofbox.runtimes.fake.runtime import FakeHandle
from proofbox.sandbox.host import Host

pytestmark = pytest.mark.anyio

NAME = "slow"


CHANGES = """
import ctypes, os, resource, subprocess, sys
from proofbox.runtime.kept import facts
def shell(text):
    return lambda: subprocess.run(["sh", "-ec", text, "sh", sys.argv[1]], check=True)
changes = [
    lambda: None,
    shell('mount --bind "$1" /proc/sys/kernel/random/boot_id'),
    shell("echo 99 > /proc/sys/user/max_net_namespaces"),
    shell("mount -t tmpfs none /etc"),
    lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (99, 99)),
    lambda: ctypes.CDLL(None).prctl(38, 1, 0, 0, 0),
    lambda: ctypes.CDLL(None).unshare(0x08000000),
    lambda: os.environ.update(PROOFBOX_GUEST="/elsewhere"),
]
before = facts(())
for change in changes:
    change()
    after = facts(())
    print("same" if after == before else "other")
    before = after
"""
"""Changes one thing after the other, in namespaces of its own, and tells whether the digest changed with it."""


class Slow(FakeRuntime):
    """A runtime of level ``vm`` whose probe takes a while, and counts how often it was asked."""

    def __init__(self, program: Path, *, usable: bool = True, works: bool = True) -> None:
        super().__init__()
        self.name = NAME
        self.level = "vm"
        self.asked = 0
        self.recalled: list[Probe] = []
        self.usable = usable
        self.meanwhile: Callable[[], object] = lambda: None
        self._program = program
        self._works = works

    async def probe(self) -> Probe:
        self.asked += 1
        await anyio.sleep(0.02)
        self.meanwhile()
        missing = () if self.usable else (Missing("no kernel", "apt install one"),)
        own = {"networks": frozenset({"none"}), "enforces": frozenset({"memory"}), "facts": {"platform": "kvm"}}
        return Probe(usable=self.usable, level="vm", users=True, missing=missing, **own)  # type: ignore[arg-type]

    def rests_on(self) -> tuple[str, ...]:
        return (str(self._program),)

    def recall(self, probe: Probe) -> None:
        self.recalled.append(probe)

    async def create(self, spec: SandboxSpec, template: Template) -> FakeHandle:
        if not self._works:
            raise CreateFailed(f"sandbox {spec.id}: the machine did not boot", "boot")
        return await super().create(spec, template)


Next = Callable[..., Slow]


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Next]:
    """Puts a new runtime of that name in place of the one before, as the next process has it."""
    monkeypatch.setenv("PROOFBOX_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(kept, "SLOW", 0.01)
    program = tmp_path / "program"
    program.write_bytes(b"one")

    def following(**says: bool) -> Slow:
        runtime = Slow(program, **says)
        registry.register(NAME, lambda owner: runtime)
        return runtime

    yield following
    registry.unregister(NAME)


async def test_the_next_process_does_not_ask_again(process: Next) -> None:
    """It gets the whole answer, and so does its runtime."""
    first = process()
    found = await registry.probe(NAME)
    second = process()
    assert await registry.probe(NAME) == found
    assert (first.asked, second.asked, second.recalled) == (1, 0, [found])


@pytest.mark.parametrize(
    "change",
    [
        lambda path, patch: path.write_bytes(b"two"),
        lambda path, patch: os.utime(path, ns=(1, 1)),
        lambda path, patch: path.chmod(0o700),
        lambda path, patch: path.unlink(),
        lambda path, patch: patch.setenv("PATH", "/elsewhere"),
        lambda path, patch: patch.setattr(kept, "LONGEST", 0.0),
    ],
    ids=["content", "times", "mode", "gone", "environment", "age"],
)
async def test_any_change_of_what_it_rests_on_asks_anew(
    process: Next, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[..., object]
) -> None:
    """Of the program, or of what this process is."""
    process()
    await registry.probe(NAME)
    change(tmp_path / "program", monkeypatch)
    later = process()
    await registry.probe(NAME)
    assert (later.asked, later.recalled) == (1, [])


async def test_what_changes_while_it_is_asked_is_asked_again(process: Next, tmp_path: Path) -> None:
    """The answer may be of before the change or of after it: nobody knows."""
    first = process()
    first.meanwhile = lambda: (tmp_path / "program").write_bytes(b"two")
    await registry.probe(NAME)
    later = process()
    await registry.probe(NAME)
    assert (first.asked, later.asked) == (1, 1)


@pytest.mark.container
def test_every_fact_of_the_host_counts(tmp_path: Path) -> None:
    """Another boot, switch, user's ids, limit or right, each really another one, makes another digest."""
    (tmp_path / "file").write_text("another\n")
    words = ["unshare", "-Urm", sys.executable, "-c", CHANGES, str(tmp_path / "file")]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    if "unshare" in ran.stderr:
        pytest.skip(f"a namespace to change things in cannot be made here: {ran.stderr}")
    assert ran.stdout.split() == ["same", *["other"] * 7], ran.stdout + ran.stderr


async def test_only_a_proof_is_kept(process: Next) -> None:
    """Who mends a host is believed at once; and what has become unusable is forgotten."""
    process(usable=False)
    assert not (await registry.probe(NAME)).usable
    assert (await process_usable(process)).asked == 1
    gone = process(usable=False)
    await registry.probe(NAME, fresh=True)
    assert gone.asked == 1
    last = process()
    await registry.probe(NAME)
    assert last.asked == 1


async def process_usable(process: Next) -> Slow:
    """The next one, which works, and was asked."""
    runtime = process()
    assert (await registry.probe(NAME)).usable
    return runtime


async def test_a_quick_probe_is_not_kept(process: Next, monkeypatch: pytest.MonkeyPatch) -> None:
    """To ask is as quick as to look at all that it rests on."""
    monkeypatch.setattr(kept, "SLOW", 1000.0)
    process()
    await registry.probe(NAME)
    again = process()
    await registry.probe(NAME)
    assert again.asked == 1


async def test_what_is_too_old_is_removed(process: Next) -> None:
    """What nobody asks for any more does not stay: the next answer that is kept clears it away."""
    process()
    await registry.probe(NAME)
    old = state_dir() / "probes" / "another"
    old.write_bytes(b"{}")
    os.utime(old, (1, 1))
    process()
    await registry.probe(NAME, fresh=True)
    assert [path.name for path in old.parent.iterdir()] == [NAME]


async def test_nobody_elses_word_is_taken(process: Next) -> None:
    """A file or directory that others can write, or that is theirs, is no answer; nor is a link, nor junk."""
    process()
    await registry.probe(NAME)
    place = state_dir() / "probes"
    answer = place / NAME
    whole = answer.read_bytes()
    spoilt: list[Callable[[], object]] = [
        lambda: answer.chmod(0o620),
        lambda: place.chmod(0o770),
        lambda: answer.write_bytes(whole[:-9]),
        lambda: os.symlink(answer.rename(place / "other"), answer),
    ]
    if os.geteuid() == 0:
        spoilt += [lambda: os.chown(answer, 12345, 0), lambda: os.chown(place, 12345, 0)]
    for spoil in spoilt:
        spoil()
        asked = process()
        await registry.probe(NAME)
        assert asked.asked == 1
        os.chown(place, os.geteuid(), -1)
        place.chmod(0o700)
        answer.unlink(missing_ok=True)
        answer.write_bytes(whole)
        answer.chmod(0o600)
    trusted = process()
    await registry.probe(NAME)
    assert trusted.asked == 0


async def test_a_sandbox_that_cannot_be_made_drops_the_answer(process: Next) -> None:
    """What was proved once is not held against the facts: the next one who selects it asks."""
    process()
    await registry.probe(NAME)
    broken = process(works=False)
    host = await Host.local(NAME, "vm")
    assert broken.asked == 0
    with pytest.raises(CreateFailed, match="did not boot"):
        async with host.open_sandbox():
            pass
    await host.aclose()
    broken.usable = False
    with pytest.raises(Refused, match="no kernel"):
        await Host.local(NAME, "vm")
    assert broken.asked == 1
