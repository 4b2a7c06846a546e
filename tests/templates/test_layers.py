"""Layers and the templates made of them: one digest for one content, kept as long as something refers to it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from proofbox.errors import InvalidInput
from proofbox.templates.store import Store
from proofbox.templates.tree import OPAQUE
from proofbox.templates.unpack import Notes

MADE = """
import os, sys, time
from pathlib import Path
from proofbox.templates.store import Store
from proofbox.templates.unpack import Notes
def fill(tree):
    tree.mkdir()
    (tree / "file").write_text("content")
    return Notes()
store = Store(Path(sys.argv[1]))
layer = store.put_layer(fill)
print(layer, flush=True)
time.sleep(60)
"""


def filled(*more: Callable[[Path], object]) -> Callable[[Path], Notes]:
    """A maker of a layer with two files, a directory and a link, and what ``more`` does to it."""

    def fill(tree: Path) -> Notes:
        (tree / "dir").mkdir(parents=True)
        (tree / "file").write_text("content")
        (tree / "other").write_text("content")
        (tree / "link").symlink_to("file")
        for change in more:
            change(tree)
        return Notes()

    return fill


def linked(tree: Path) -> None:
    """One file with two names instead of two alike."""
    (tree / "other").unlink()
    (tree / "other").hardlink_to(tree / "file")


def turned(tree: Path) -> None:
    """The link points elsewhere."""
    (tree / "link").unlink()
    (tree / "link").symlink_to("dir")


def whiteout(mode: int) -> Callable[[Path], object]:
    """A removal, as an overlay with that idea of its mode writes it down."""

    def change(tree: Path) -> None:
        os.mknod(tree / "gone", stat.S_IFCHR, 0)
        (tree / "gone").chmod(mode)

    return change


CHANGES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda tree: tree,
    "content": lambda tree: (tree / "file").write_text("Content"),
    "mode": lambda tree: (tree / "file").chmod(0o600),
    "mode of the root": lambda tree: tree.chmod(0o700),
    "whiteout": whiteout(0),
    "empty file": lambda tree: (tree / "gone").touch(),
    "opaque": lambda tree: os.setxattr(tree / "dir", OPAQUE, b"y"),
    "attribute": lambda tree: os.setxattr(tree / "dir", "user.proofbox", b"y"),
    "attribute of a file": lambda tree: os.setxattr(tree / "file", "user.proofbox", b"y"),
    "hard link": linked,
    "target": turned,
    "fifo": lambda tree: os.mkfifo(tree / "gone"),
}


def test_whatever_differs_in_a_layer_differs_in_its_digest(store: Store) -> None:
    """Removals, opaque directories, attributes and hard links count; times, and what an overlay notes, do not."""
    digests = {what: store.put_layer(filled(change)) for what, change in CHANGES.items()}
    assert len(set(digests.values())) == len(CHANGES)
    assert store.put_layer(filled(lambda tree: os.utime(tree / "file", (0, 0)))) == digests["nothing"]
    noted = filled(lambda tree: os.setxattr(tree / "dir", "user.overlay.impure", b"y"))
    assert store.put_layer(noted) == digests["nothing"]
    assert store.put_layer(filled(whiteout(0o644))) == digests["whiteout"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_an_owner_differs_in_the_digest(store: Store) -> None:
    """Made by root, a layer keeps the ids that its files have inside."""
    given = filled(lambda tree: os.chown(tree / "file", 1000, 1000))
    assert store.put_layer(given) != store.put_layer(filled())


def test_what_its_owner_closed_is_in_the_digest_and_stays_closed(store: Store) -> None:
    """A file of mode 0 below a directory of mode 0 is as in the image, and its content counts."""

    def close(tree: Path) -> None:
        (tree / "dir/secret").write_text("secret")
        (tree / "dir/secret").chmod(0)
        (tree / "dir").chmod(0)

    closed = store.put_layer(filled(close))
    assert stat.S_IMODE((store.layers.tree(closed) / "dir").stat().st_mode) == 0
    assert closed != store.put_layer(filled(lambda tree: (tree / "dir").chmod(0)))


def test_a_layer_is_kept_as_long_as_one_template_has_it(store: Store) -> None:
    """Two templates share a layer: it goes with the second one, and the other layers with their own."""
    shared, first, second = (store.put_layer(filled(CHANGES[what])) for what in ("nothing", "mode", "content"))
    env = {"PATH": "/bin"}
    store.put_template([("/", first), ("/", shared)], env=env, facts={}, name="first")
    store.put_template([("/", second), ("/", shared)], env=env, facts={}, name="second")
    store.close()
    assert store.collect() == 0
    store.remove("first")
    assert set(store.layers) == {second, shared}
    assert [layer.digest for layer in store.resolve("second").layers] == [second, shared]
    store.close()
    store.remove("second")
    assert list(store.layers) == []
    assert not list((store.home / "pins").iterdir())


def test_the_digest_of_a_template_follows_all_that_a_sandbox_starts_with(store: Store) -> None:
    """Layers and their order, environment, directory and user; not its name, nor the record of where it came from."""
    one, two = (store.put_layer(filled(CHANGES[what])) for what in ("nothing", "mode"))
    base = store.put_template([("/", one), ("/", two)], env={"A": "1"}, facts={"source": "here"})
    same = store.put_template([("/", one), ("/", two)], env={"A": "1"}, facts={"source": "there"}, name="named")
    assert same.digest == base.digest
    assert store.resolve(base.digest).facts == {"source": "there"}
    others = [
        store.put_template([("/", two), ("/", one)], env={"A": "1"}, facts={}),
        store.put_template([("/", one), ("/", two)], env={"A": "2"}, facts={}),
        store.put_template([("/", one), ("/", two)], env={"A": "1"}, cwd="/dir", facts={}),
        store.put_template([("/", one), ("/", two)], env={"A": "1"}, user="nobody", facts={}),
        store.put_template([("/", one), ("/dir", two)], env={"A": "1"}, facts={}),
    ]
    assert len({base.digest, *(other.digest for other in others)}) == 6


def test_a_template_of_a_layer_that_is_not_there_is_refused(store: Store) -> None:
    """Nothing refers to what the store does not have."""
    with pytest.raises(InvalidInput, match="no layer sha256:0000"):
        store.put_template([("/", "sha256:" + "0" * 64)], env={}, facts={}, name="t")
    with pytest.raises(InvalidInput, match="none of its layers"):
        store.put_template([], env={}, facts={})
    assert store.list() == ()


def test_a_layer_is_collected_when_its_maker_was_killed_before_the_template(store: Store) -> None:
    """As long as the maker lives it has time to name it; after that nothing refers to the layer."""
    maker = subprocess.Popen([sys.executable, "-c", MADE, str(store.home)], stdout=subprocess.PIPE, text=True)
    assert maker.stdout is not None
    layer = maker.stdout.readline().strip()
    assert store.collect() == 0
    assert list(store.layers) == [layer]
    maker.send_signal(signal.SIGKILL)
    with maker:
        pass
    assert store.collect() == 1
    assert list(store.layers) == []


def test_a_template_that_has_a_name_is_not_removed_by_its_digest(store: Store) -> None:
    """A digest stands for nothing of its own: the message says which name it is."""
    made = store.put_template([("/", store.put_layer(filled()))], env={}, facts={}, name="called")
    store.close()
    with pytest.raises(InvalidInput, match="called"):
        store.remove(made.digest)
    assert store.resolve("called").digest == made.digest


def test_makers_and_collectors_at_once_lose_nothing_that_is_named(store: Store) -> None:
    """While one process makes and names the same templates again and again, another one collects: each name works."""
    code = (
        "import sys; from pathlib import Path; from proofbox.templates.store import Store\n"
        "store = Store(Path(sys.argv[1]))\n"
        "for n in range(8):\n"
        "    store.import_directory(Path(sys.argv[2]), f'name{n}', env={'N': str(n)})\n"
        "    store.close()\n"
        "    if n % 2: store.remove(f'name{n}')\n"
    )
    source = store.home.parent / "source"
    filled()(source)
    maker = subprocess.Popen([sys.executable, "-c", code, str(store.home), str(source)])
    while maker.poll() is None:
        store.collect()
    assert maker.returncode == 0
    for n in range(0, 8, 2):
        assert (Path(store.resolve(f"name{n}").layers[0].source) / "file").read_text() == "content"
    store.close()
    assert store.collect() == 0
    assert len(list(store.layers)) == 1
