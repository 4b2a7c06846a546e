"""The synchronous facade says and does what the async API does."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import proofbox
from proofbox import sync, sync_files
from proofbox.build.api import build_template
from proofbox.errors import FileFailed, InvalidInput, OperationFailed, SandboxLost
from proofbox.model.outcome import Exited, Killed
from proofbox.runtime import registry
from proofbox.runtimes.fake import FakeRuntime, Faults
from proofbox.sandbox import api, commands, connection, files, fork, host, pool, trees

TWINS = [
    (sync.Sandbox, api.Sandbox),
    (sync.Forking, fork.Forking),
    (sync.Command, commands.Command),
    (sync_files.Files, files.Files),
    (sync_files.Trees, trees.Trees),
    (sync.Connection, connection.Connection),
    (sync.Pool, pool.Pool),
]
INSIDE = {(pool.Pool, "open")}
"""What the async class has for its maker and for nobody else."""
CHANGED = {
    ("write_from", "source"): "Iterable[bytes]",
    ("write_tar", "source"): "Iterable[bytes]",
    ("read_tar", "return"): "Iterator[bytes]",
    ("read_into", "sink"): "Callable[[bytes], object]",
    ("output", "return"): "Iterator[tuple[int, bytes]]",
    ("claim", "return"): "AbstractContextManager[Sandbox]",
    ("fork", "return"): "AbstractContextManager[tuple[Sandbox, ...]]",
}
"""Where the type has to differ: what is iterated or called is not awaited here."""


def public(kind: type) -> dict[str, Any]:
    """The public methods and properties of a class, those that close it under their synchronous name."""
    names = {"aclose": "close"}
    return {
        names.get(name, name): value
        for name, value in vars(kind).items()
        if not name.startswith("_") and (kind, name) not in INSIDE
    }


@pytest.mark.parametrize("twins", TWINS, ids=lambda twins: twins[0].__name__)
def test_every_method_has_the_same_signature(twins: tuple[type, type]) -> None:
    """Names, kinds, defaults, types and results of all public methods are those of the async class."""
    ours, theirs = public(twins[0]), public(twins[1])
    assert ours.keys() == theirs.keys()
    for name, method in theirs.items():
        if isinstance(method, property):
            assert isinstance(ours[name], property), name
            continue
        assert not inspect.iscoroutinefunction(ours[name]), name
        mine, its = inspect.signature(ours[name]), inspect.signature(method)
        assert list(mine.parameters) == list(its.parameters), name
        for parameter, wanted in its.parameters.items():
            found = mine.parameters[parameter]
            annotation = CHANGED.get((name, parameter), wanted.annotation)
            assert (found.kind, found.default, found.annotation) == (wanted.kind, wanted.default, annotation), name
        assert mine.return_annotation == CHANGED.get((name, "return"), its.return_annotation), name


def test_the_ways_in_have_the_same_signatures() -> None:
    """They take the same arguments."""
    assert inspect.signature(sync.open_sandbox).parameters == inspect.signature(host.open_sandbox).parameters
    assert inspect.signature(sync.open_pool).parameters == inspect.signature(host.open_pool).parameters
    assert inspect.signature(sync.build_template) == inspect.signature(build_template)


@pytest.fixture
def fake() -> Iterator[FakeRuntime]:
    """The scripted runtime of this process, without a script; every sandbox must be gone in the end."""
    runtime = registry.runtime("fake")
    assert isinstance(runtime, FakeRuntime)
    runtime.scripts = FakeRuntime().scripts
    yield runtime
    assert runtime.live == {}


def opened() -> Any:
    """A scripted sandbox."""
    return sync.open_sandbox(runtime="fake", level="none", allow_unisolated=True)


def test_trees_go_in_and_out_without_an_event_loop(fake: FakeRuntime, tmp_path: Path) -> None:
    """As directories and as archives; a reader that stops early ends its operation."""
    (tmp_path / "in/sub").mkdir(parents=True)
    (tmp_path / "in/sub/file").write_text("content")
    with opened() as box:
        assert box.files.upload(tmp_path / "in", "/d").entries == 2
        raw = b"".join(box.files.read_tar("/d"))
        assert box.files.write_tar("/again", iter([raw[:700], raw[700:]])).size == 7
        assert box.files.download("/again", tmp_path / "out").entries == 2
        for _ in box.files.read_tar("/d"):
            break
        with pytest.raises(FileFailed, match="/none"):
            list(box.files.read_tar("/none"))
        assert box.run("echo on").stdout == "on\n"
    assert (tmp_path / "out/sub/file").read_text() == "content"


def test_a_sandbox_is_used_without_an_event_loop(fake: FakeRuntime) -> None:
    """Commands, background commands, files, connections: the whole surface, and it is gone after the block."""
    with opened() as box:
        assert box.run("echo hello; exit 3").outcome == Exited(3)
        job = box.start("cat", stdin=True)
        assert job.send(b"a line")
        job.send_eof()
        assert list(job.output()) == [(1, b"a line")]
        assert job.wait().stdout == "a line"
        assert isinstance(box.start("sleep 60").kill().outcome, Killed)
        assert next(command.id for command in box.commands()) == job.id
        assert box.write("/dir/file", b"data").size == 4
        assert box.read("/dir/file") == b"data"
        assert box.files.write_from("/dir/more", iter([b"one ", b"two"]), size=7).size == 7
        got: list[bytes] = []
        assert box.files.read_into("/dir/more", got.append) == 7
        assert b"".join(got) == b"one two"
        assert [entry.path for entry in box.files.list("/dir")] == ["file", "more"]
        with box.connect(7) as echo:
            echo.send(b"ping")
            assert echo.receive() == b"ping"
        with pytest.raises(OperationFailed):
            box.connect(8)
        assert box.kill_all() == 0
        assert box.live
    assert not box.live
    with pytest.raises(SandboxLost):
        box.run("echo never")


def test_a_pool_is_used_without_an_event_loop(fake: FakeRuntime) -> None:
    """Claims from several threads, the pool's state, and nothing is left after the block."""
    hosts: list[str] = []

    def work(pool: sync.Pool) -> None:
        with pool.claim() as box:
            hosts.append(box.run("echo x").stdout + box.id)

    with sync.open_pool(runtime="fake", level="none", allow_unisolated=True, size=(3, 4)) as pool:
        assert pool.ready(10).state == "ready"
        threads = [threading.Thread(target=work, args=(pool,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stats = pool.stats()
        assert stats.hits + stats.misses == len(set(hosts)) == 3
        pool.close()
        assert pool.stats().state == "closed"
    assert fake.live == {}


def test_errors_in_the_block_come_out(fake: FakeRuntime) -> None:
    """The sandbox is destroyed and the error is the caller's own."""
    with pytest.raises(ZeroDivisionError), opened():
        raise ZeroDivisionError


def test_threads_share_one_loop(fake: FakeRuntime) -> None:
    """Eight threads, each with a sandbox of its own, and all with one that they share."""
    answers: list[str] = []

    def work(number: int, shared: sync.Sandbox) -> None:
        with opened() as mine:
            answers.append(mine.run(f"echo {number}").stdout + shared.run(f"echo {number}").stdout)

    with opened() as shared:
        threads = [threading.Thread(target=work, args=(number, shared)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(answers) == [f"{number}\n{number}\n" for number in range(8)]
    assert len([thread for thread in threading.enumerate() if thread.name == "proofbox sync"]) == 1


async def test_a_call_inside_a_loop_names_the_async_api(fake: FakeRuntime) -> None:
    """It would block the loop, so it is refused before anything is made."""
    with pytest.raises(InvalidInput, match=r"async with proofbox\.open_sandbox"), opened():
        pass


def test_both_facades_work_in_one_process(fake: FakeRuntime) -> None:
    """The async API on a loop of its own before, between and after synchronous calls."""

    async def asynchronous() -> str:
        async with proofbox.open_sandbox(runtime="fake", level="none", allow_unisolated=True) as box:
            return (await box.run("echo async")).stdout

    for _ in range(2):
        assert anyio.run(asynchronous) == "async\n"
        with opened() as box:
            assert box.run("echo sync").stdout == "sync\n"


@pytest.mark.parametrize("faults", [Faults(create_hangs=True), Faults(boot_delay=60), Faults()], ids=str)
def test_an_interruption_ends_what_it_interrupts(fake: FakeRuntime, faults: Faults) -> None:
    """Ctrl-C in a creation and in a command: the call ends with KeyboardInterrupt, and nothing of it is left."""
    fake.scripts = lambda spec: faults
    main = threading.get_ident()

    def interrupt() -> None:
        time.sleep(0.3)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt), opened() as box:
        box.run("sleep 60")
    thread.join()
    assert fake.live == {}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_is_told_that_the_sandbox_is_not_its_own(fake: FakeRuntime) -> None:
    """The child's call fails with a sentence, at once; a sandbox of its own works; the parent's goes on."""
    with opened() as box:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            said = "nothing"
            try:
                box.run("echo never")
            except InvalidInput as error:
                said = str(error)
                with opened() as own:
                    said += own.run("echo own").stdout
            finally:
                os.write(write, said.encode())
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            said = pipe.read()
        assert os.waitpid(child, 0)[1] == 0
        assert f"belongs to process {os.getpid()}" in said
        assert said.endswith("own\n")
        assert box.run("echo on").stdout == "on\n"


def test_it_is_there_without_an_import_of_its_own() -> None:
    """As the documentation names it: ``proofbox.sync.open_pool`` after ``import proofbox``."""
    code = "import proofbox; print(proofbox.sync.open_pool.__name__)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "open_pool\n"


FORKS = """
import atexit, gc, os, sys
from proofbox import sync
from proofbox.model.limits import Limits

with sync.open_sandbox("host", runtime="process", allow_unisolated=True, limits=Limits()) as box:
    box.run("true")
del box
child = os.fork()
if child == 0:
    if sys.argv[1] == "multiprocessing":  # which does so since Python 3.13, before it runs what was asked for
        atexit._clear()
    gc.collect()
    print("ends", flush=True)
    sys.exit()
os.waitpid(child, 0)
"""


@pytest.mark.parametrize("like", ["os", "multiprocessing"])
def test_a_fork_ends_by_itself(like: str) -> None:
    """It has not the thread that serves the sandboxes, and waits for none."""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, like], capture_output=True, timeout=60, check=False, text=True
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "ends\n", "")
