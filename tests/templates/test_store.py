"""Names, pins, removal, and makers that were killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from proofbox.errors import InvalidInput, StoreFailed, UnknownTemplate
from proofbox.model.template import Layer, Template
from proofbox.templates.store import Store, outdated

HOLD = """
import sys, time
from pathlib import Path
from proofbox.templates.store import Store
store = Store(Path(sys.argv[1]))
store.resolve(sys.argv[2])
print("held", flush=True)
time.sleep(60)
"""

HALF_MADE = """
import sys, time
from pathlib import Path
from proofbox.host.home import workshop
with workshop(Path(sys.argv[1]) / "making") as place:
    (place / "half").mkdir()
    print("made", flush=True)
    time.sleep(60)
"""


def started(code: str, *words: str) -> subprocess.Popen[str]:
    """Another process, after it has said its word."""
    process = subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


def killed(process: subprocess.Popen[str]) -> None:
    """SIGKILL, and wait."""
    process.send_signal(signal.SIGKILL)
    with process:
        pass


def lying_over(store: Store, name: str, digest: str) -> None:
    """A template over a directory of the host's, whose digest was that when it was made."""
    directory = Template(digest=digest, name="host", layers=(Layer("/", "/usr"),), env={}, facts={})
    store.put_template([], env={}, facts={}, name=name, over=directory)


def test_a_template_over_a_host_that_changed_is_in_nobodys_way(store: Store, tree: Path) -> None:
    """It is listed as what it is, no sandbox is made of it, and it can be removed; the others are as they were."""
    kept = store.import_directory(tree, "kept")
    lying_over(store, "old", "sha256:" + "1" * 64)
    with pytest.raises(StoreFailed, match="packages have changed; make it again"):
        store.resolve("old")
    other, old = store.list()
    assert "packages have changed" in outdated(store, old)
    assert outdated(store, other) == ""
    store.collect()
    assert store.resolve("kept").digest == kept.digest
    store.close()
    store.remove("old")
    assert [one.name for one in store.list()] == ["kept"]


def test_a_template_whose_record_is_damaged_can_be_removed(store: Store, tree: Path) -> None:
    """What else there is can be listed and collected again then, and its layer goes too."""
    store.import_directory(tree, "kept")
    (tree / "more").write_text("more")
    damaged = store.import_directory(tree, "damaged")
    store.close()
    (store.home / "templates" / f"{damaged.digest.removeprefix('sha256:')}.json").write_text("{")
    with pytest.raises(StoreFailed, match="remove it"):
        store.collect()
    store.remove("damaged")
    assert [one.name for one in store.list()] == ["kept"]
    assert store.collect() == 1
    assert len(list(store.layers)) == 1


def test_a_damaged_name_can_be_removed(store: Store, tree: Path) -> None:
    """One that was cut, and one whose template is gone: neither keeps the others from being listed."""
    for name in ("kept", "cut", "gone"):
        (tree / "name").write_text(name)
        store.import_directory(tree, name)
    store.close()
    (store.home / "names/cut").write_text("")
    (store.home / "templates" / f"{store.resolve('gone').digest.removeprefix('sha256:')}.json").unlink()
    store.close()
    with pytest.raises(StoreFailed, match=r"names/cut holds no digest; remove it"):
        store.resolve("cut")
    with pytest.raises(StoreFailed, match="remove it"):
        store.collect()
    assert [one.name for one in store.list()] == ["kept"]
    for name in ("cut", "gone"):
        store.remove(name)
        with pytest.raises(UnknownTemplate):
            store.resolve(name)
    store.collect()
    assert len(list(store.layers)) == 1


def test_a_list_is_of_what_is_there(store: Store, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is removed between the two looks that a list takes is none."""
    store.import_directory(tree, "kept")
    monkeypatch.setattr(store.names, "known", lambda: ("gone", "kept"))
    assert [one.name for one in store.list()] == ["kept"]


def test_an_unknown_name_lists_the_known_ones(store: Store, tree: Path) -> None:
    """The message says what there is."""
    store.import_directory(tree, "debian/12")
    with pytest.raises(UnknownTemplate, match="debian/12"):
        store.resolve("debian/13")
    with pytest.raises(UnknownTemplate):
        store.resolve("sha256:" + "0" * 64)


def test_a_name_moves_to_the_new_digest(store: Store, tree: Path) -> None:
    """An import under a name that is taken points the name at the new template; the old one stays under its digest."""
    old = store.import_directory(tree, "t")
    (tree / "new").write_text("new")
    new = store.import_directory(tree, "t", env={"A": "b"}, cwd="/bin")
    assert store.resolve("t").digest == new.digest != old.digest
    assert (store.resolve("t").env, store.resolve("t").cwd) == ({"A": "b"}, "/bin")
    assert store.resolve(old.digest).digest == old.digest


def test_a_template_in_use_is_not_removed(store: Store, tree: Path) -> None:
    """A live process that resolved it holds it; its end, even by SIGKILL, lets go."""
    store.import_directory(tree, "t")
    other = started(HOLD, str(store.home), "t")
    remover = Store(store.home)
    try:
        store.close()
        with pytest.raises(InvalidInput, match="uses it"):
            remover.remove("t")
        assert remover.resolve("t").name == "t"
        remover.close()
    finally:
        killed(other)
    remover.remove("t")
    with pytest.raises(UnknownTemplate):
        remover.resolve("t")
    assert not any((store.home / "trees").iterdir())


def test_the_last_name_takes_the_template_with_it(store: Store, tree: Path) -> None:
    """Two names of one digest: the template goes with the second."""
    digest = store.import_directory(tree, "a").digest
    store.import_directory(tree, "b")
    store.close()
    store.remove("a")
    assert store.resolve("b").digest == digest
    store.close()
    store.remove("b")
    with pytest.raises(UnknownTemplate):
        store.resolve(digest)


def test_what_a_killed_maker_left_is_swept(store: Store) -> None:
    """A directory whose maker lives stays; after SIGKILL of the maker it goes."""
    store.home.mkdir(mode=0o700)
    maker = started(HALF_MADE, str(store.home))
    assert store.collect() == 0
    assert list((store.home / "making").glob("*/half"))
    killed(maker)
    assert store.collect() == 1
    assert not list((store.home / "making").iterdir())


def test_collect_removes_what_no_name_and_no_process_needs(store: Store, tree: Path) -> None:
    """A template that lost its name goes with the next collection, and its layer; one that is named stays."""
    store.import_directory(tree, "t")
    (tree / "new").write_text("new")
    new = store.import_directory(tree, "t")
    assert store.collect() == 0
    store.close()
    assert store.collect() == 2
    assert store.resolve("t").digest == new.digest
    assert list(store.layers) == [new.layers[0].digest]


def test_a_store_that_others_can_write_is_refused(store: Store, tree: Path) -> None:
    """Who can write the store writes every sandbox's root."""
    store.home.mkdir()
    store.home.chmod(0o777)
    with pytest.raises(StoreFailed, match="nobody else can write"):
        store.import_directory(tree, "t")


def test_layers_are_out_of_reach_of_other_users(store: Store, tree: Path) -> None:
    """An image's set-user-id program must not be runnable by the host's users."""
    (tree / "bin/tool").chmod(0o4755)
    store.import_directory(tree, "t")
    assert (store.home / "trees").stat().st_mode & 0o077 == 0


def test_two_imports_at_once_give_one_template(store: Store, tree: Path) -> None:
    """Makers of the same content do not disturb each other; both names work."""
    code = (
        "import sys; from pathlib import Path; from proofbox.templates.store import Store\n"
        "Store(Path(sys.argv[1])).import_directory(Path(sys.argv[2]), sys.argv[3])"
    )
    makers = [subprocess.Popen([sys.executable, "-c", code, str(store.home), str(tree), f"name{n}"]) for n in range(4)]
    assert [maker.wait() for maker in makers] == [0] * 4
    assert len({store.resolve(f"name{n}").digest for n in range(4)}) == 1
    assert len(os.listdir(store.home / "trees")) == 1
