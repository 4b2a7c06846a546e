"""Several pulls at a time from a real registry: layers that they have in common come once, whoever dies meanwhile."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from tests.templates.layouts import PACKINGS, Layout, Member, digest, member, tar
from tests.templates.registries import PULL, Registry

from proofbox.host.threads import descendants
from proofbox.templates.fetched import DIRECTORY, Fetched
from proofbox.templates.images import pull
from proofbox.templates.store import Store

ORDERS = ("ab", "ac", "ba", "cab")


class Images:
    """Three layers in the registry, and images of them, lowest layer first."""

    def __init__(self, served: Registry, top: Path, name: str) -> None:
        self.served = served
        self.name = name
        # Nobody else's, so that each is asked for by us alone.
        self.layers: dict[str, list[Member]] = {letter: [member(letter, os.urandom(1 << 20))] for letter in "abc"}
        self.blobs = {letter: digest(PACKINGS["gzip"][1](tar(*members))) for letter, members in self.layers.items()}
        for order in ORDERS:
            layout = Layout(top / order)
            layout.done(layout.image([self.layers[letter] for letter in order]))
            served.push(layout.top, f"app:{name}-{order}")

    def reference(self, order: str) -> str:
        """What to pull."""
        return f"{self.served.address}/app:{self.name}-{order}"

    def fetched(self) -> dict[str, int]:
        """How often each layer was asked for."""
        return {letter: self.served.asked_for(digest) for letter, digest in self.blobs.items()}


@pytest.fixture
def images(served: Registry, tmp_path: Path, request: pytest.FixtureRequest) -> Images:
    """Of the test alone."""
    return Images(served, tmp_path / "images", f"{abs(hash(request.node.name))}")


def puller(store: Store, reference: str, name: str) -> subprocess.Popen[bytes]:
    """A process that pulls."""
    words = [sys.executable, "-c", PULL, str(store.home), reference, name]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def until(process: subprocess.Popen[bytes], path: Path) -> None:
    """Waits until that process has that file open, as it has while it holds or wants a lock."""
    deadline = time.monotonic() + 60
    while str(path) not in _open(process):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.001)


def ended(*processes: subprocess.Popen[bytes]) -> None:
    """Waits for them; they did what they were to do."""
    assert [(process.communicate()[1], process.returncode) for process in processes] == [(b"", 0)] * len(processes)


def _open(process: subprocess.Popen[bytes]) -> Iterator[str]:
    directory = Path(f"/proc/{process.pid}/fd")
    for entry in os.listdir(directory):
        try:
            yield os.readlink(directory / entry)
        except FileNotFoundError:
            continue


@contextmanager
def stopped(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """It stands still inside the ``with``."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def leftovers(store: Store) -> list[Path]:
    """Of pulls."""
    return [path for name in ("making", DIRECTORY) for path in (store.home / name).glob("*")]


def test_layers_that_images_have_in_common_come_once(store: Store, images: Images) -> None:
    """Four images at a time, two over the same layer, all in other orders: each blob is asked for one time."""
    with Fetched(store.home, images.blobs.values()):  # one more that wants them, so that no other one lets them go
        pulls = [puller(store, images.reference(order), f"name{order}") for order in ORDERS]
        ended(*pulls)
    assert images.fetched() == {"a": 1, "b": 1, "c": 1}
    for order in ORDERS:
        made = store.resolve(f"name{order}")
        assert [os.listdir(layer.source) for layer in made.layers] == [[letter] for letter in reversed(order)]
        assert [Path(layer.source, order[-1 - n]).read_bytes() for n, layer in enumerate(made.layers)] == [
            images.layers[letter][0][1] for letter in reversed(order)
        ]
    assert not leftovers(store)


async def _pull_all(store: Store, images: Images, *orders: str) -> None:
    async with anyio.create_task_group() as group:
        for order in orders:
            group.start_soon(anyio.to_thread.run_sync, pull, store, images.reference(order), f"name{order}")


def test_so_they_do_for_tasks_of_one_process(store: Store, images: Images) -> None:
    """Two over the same layer."""
    anyio.run(_pull_all, store, images, "ab", "ac")
    assert images.fetched() == {"a": 1, "b": 1, "c": 1}
    assert not leftovers(store)


def test_who_waits_goes_on_when_the_other_is_killed(store: Store, images: Images) -> None:
    """One that stood still while it fetched is killed with ``kill -9``: the other fetches what is missing."""
    blob = store.home / DIRECTORY / images.blobs["a"][7:]
    one = puller(store, images.reference("ab"), "one")
    until(one, blob.with_suffix(".lock"))
    with stopped(one):
        other = puller(store, images.reference("ac"), "other")
        until(other, blob)
        one.kill()
        one.communicate()
    ended(other)
    assert images.fetched()["c"] == 1
    assert images.fetched()["a"] >= 1
    assert [template.name for template in store.list()] == ["other"]
    Store(store.home).collect()
    assert not leftovers(store)


def test_what_fetches_ends_with_who_wants_it(store: Store, images: Images, served: Registry) -> None:
    """With ``kill -9``, while the registry gives no answer; and where a task is cancelled, which waits no longer."""
    with stopped(served.process):
        one = puller(store, images.reference("ab"), "one")
        asks = asking_for(one)
        one.kill()
        one.communicate()
        gone(asks)
        anyio.run(_cancelled, store, images.reference("ab"))
        assert not programs_of(os.getpid())
    Store(store.home).collect()
    assert not leftovers(store)


async def _cancelled(store: Store, reference: str) -> None:
    with anyio.move_on_after(0.5) as scope:
        await anyio.to_thread.run_sync(pull, store, reference, "name")
    assert scope.cancelled_caught


def asking_for(process: subprocess.Popen[bytes]) -> int:
    """A descriptor of what asks a registry for it, when there is one."""
    deadline = time.monotonic() + 60
    while not (found := programs_of(process.pid)):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return os.pidfd_open(found[0])


def programs_of(process: int) -> list[int]:
    """Those that ask registries for it."""
    found = {pid: Path(f"/proc/{pid}/comm") for pid in descendants(process)}
    return [pid for pid, name in found.items() if name.exists() and name.read_text() == "skopeo\n"]


def gone(process: int) -> None:
    """Waits until it has ended."""
    with open(process):
        assert select.select([process], [], [], 60)[0]


def test_nothing_is_collected_under_a_pull(store: Store, images: Images) -> None:
    """``proofbox gc`` while one stands still in the middle, over what an earlier image left: it goes on, and a second
    one of the same image waits for it.
    """
    pull(store, images.reference("ab"), "made")
    store.close()
    store.remove("made")  # what came of the image is still on record, for the collector
    (record,) = (path for path in (store.home / "images").iterdir() if not path.suffix)
    one = puller(store, images.reference("ab"), "one")
    until(one, store.home / DIRECTORY / f"{images.blobs['a'][7:]}.lock")
    with stopped(one):
        Store(store.home).collect()
        other = puller(store, images.reference("ab"), "other")
        until(other, record.with_suffix(".lock"))
    ended(one, other)
    assert images.fetched() == {"a": 2, "b": 2, "c": 0}
    assert {template.name for template in store.list()} == {"one", "other"}
    assert not leftovers(store)


def test_killed_at_random_instants_nothing_is_left(store: Store, images: Images) -> None:
    """Two pulls at a time, of which one is killed and the other comes to its end; the collector sweeps the rest."""
    chance = random.Random(8)
    for number in range(6):
        killed, other = (puller(store, images.reference(order), f"name{order}{number}") for order in ("ba", "cab"))
        time.sleep(chance.uniform(0.1, 0.6))
        killed.kill()
        killed.communicate()
        ended(other)
        store.remove(f"namecab{number}")
        store.collect()
        assert not leftovers(store)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts on the host")
def test_a_pull_on_a_full_disk_is_told_and_leaves_nothing(images: Images, tmp_path: Path) -> None:
    """The file system has room for one of the two layers; the message says what to do."""
    home = tmp_path / "small"
    home.mkdir()
    mount = 'mount -t tmpfs -o size=1500k,mode=0700 home "$1" && { "$2" -c "$3" "$1" "$4" name; find "$1" -type f; }'
    words = ["sh", str(home), sys.executable, PULL, images.reference("ab")]
    ran = subprocess.run(["unshare", "-m", "sh", "-c", mount, *words], capture_output=True, text=True, check=False)
    assert "StoreFailed" in ran.stderr
    assert "no space left on device" in ran.stderr.lower()
    assert "`proofbox gc` removes what nothing needs" in ran.stderr
    assert {Path(line).suffix for line in ran.stdout.splitlines()} <= {".lock"}
    assert not [line for line in ran.stdout.splitlines() if "making" in line or DIRECTORY in line]
