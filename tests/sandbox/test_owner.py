"""Owner records: seen as alive by the kernel's lock alone, swept once."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import subprocess
import sys
import threading

import pytest

from proofbox.errors import StoreFailed
from proofbox.host import owner as owners
from proofbox.host.owner import Owner, dead_owners

REGISTER = "from proofbox.host.owner import Owner; o = Owner.register(); print(o.id, flush=True); input()"


def register_elsewhere(state: pathlib.Path) -> tuple[subprocess.Popen[str], str]:
    """Another process that has registered and lives."""
    process = subprocess.Popen(
        [sys.executable, "-c", REGISTER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PROOFBOX_STATE": str(state)},
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    """Kills it and closes its pipes."""
    process.kill()
    process.communicate()


def test_a_killed_owner_is_dead_and_a_living_one_is_not(state: pathlib.Path) -> None:
    """The lock tells, in the moment of the death."""
    process, ident = register_elsewhere(state)
    try:
        assert dead_owners() == []
    finally:
        end(process)
    (dead,) = dead_owners()
    assert dead.id == ident
    assert dead_owners() == [], "a second reaper must not see it while the first one works"
    assert dead.forget()
    assert list((state / "owners").iterdir()) == []


def test_our_own_record_is_never_dead(state: pathlib.Path) -> None:
    """A process does not sweep itself."""
    mine = Owner.register()
    assert dead_owners() == []
    assert mine.forget()
    assert mine.forget(), "forget is idempotent"


def test_a_record_with_things_left_stays_for_the_next_sweep(state: pathlib.Path) -> None:
    """Forgetting an owner whose directory is not empty would hide what is left."""
    mine = Owner.register()
    (mine.dir / "left").mkdir()
    assert not mine.forget()
    (again,) = dead_owners()
    assert again.id == mine.id
    (mine.dir / "left").rmdir()
    assert again.forget()


def _forget_in_child(ident: str, directory: pathlib.Path) -> None:
    Owner(ident, directory).forget()
    os._exit(7 if owners._locks else 0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_neither_holds_nor_removes_the_record(state: pathlib.Path) -> None:
    """A worker that was forked must not keep its dead parent's record locked, nor delete a living parent's."""
    mine = Owner.register()
    child = multiprocessing.get_context("fork").Process(target=_forget_in_child, args=(mine.id, mine.dir))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert mine.dir.is_dir()
    assert mine.forget()


def test_registering_and_reaping_at_once_never_takes_a_living_record(state: pathlib.Path) -> None:
    """Between its creation and its lock no record is visible to a reaper."""
    stop = threading.Event()
    wrong: list[str] = []

    def reap() -> None:
        while not stop.is_set():
            wrong.extend(dead.id for dead in dead_owners())

    Owner.register().forget()
    reaper = threading.Thread(target=reap)
    reaper.start()
    try:
        made = [Owner.register() for _ in range(50)]
    finally:
        stop.set()
        reaper.join()
    assert wrong == []
    assert all(each.forget() for each in made)


def test_a_state_directory_of_somebody_else_is_refused(state: pathlib.Path) -> None:
    """Whoever can write there could make us remove things."""
    state.mkdir(mode=0o777)
    state.chmod(0o777)
    with pytest.raises(StoreFailed, match="0777"):
        Owner.register()
