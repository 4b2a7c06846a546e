"""Pulls from a real registry on this machine's loopback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.templates.layouts import Layout, member
from tests.templates.registries import PULL, Registry

from proofbox.errors import InvalidInput, Refused, StoreFailed
from proofbox.kit.tree import remove_tree
from proofbox.templates import registry
from proofbox.templates.image import architecture
from proofbox.templates.images import pull
from proofbox.templates.store import Store


def pushed(served: Registry, top: Path, name: str, content: bytes = b"content") -> Layout:
    """An image of one file in that registry, for this machine and for another one."""
    layout = Layout(top)
    images = [
        layout.image([[member("file", content)]], {"Cmd": ["run"]}, machine=machine)
        for machine in ("m68k", architecture()[0])
    ]
    layout.done(layout.document({"schemaVersion": 2, "manifests": images}, "index.v1+json"))
    served.push(layout.top, name)
    return layout


def test_an_image_comes_from_a_registry(store: Store, served: Registry, tmp_path: Path) -> None:
    """What a tag names now, for this machine; the record says which digest, how long it took, and that a tag moves."""
    pushed(served, tmp_path / "image", "app:1")
    made = pull(store, f"{served.address}/app:1", "made")
    assert (Path(made.layers[0].source) / "file").read_bytes() == b"content"
    assert made.facts["source"] == f"docker://{served.address}/app@{made.facts['image_digest']}"
    assert made.facts["index_digest"] != made.facts["image_digest"]
    assert float(made.facts["pull_seconds"]) > 0 <= float(made.facts["unpack_seconds"])
    assert "a tag" in made.facts["mutable"]
    fixed = pull(store, f"{served.address}/app@{made.facts['index_digest']}", "fixed")
    assert fixed.digest == made.digest
    pushed(served, tmp_path / "second", "second:1", b"second")
    index = registry.look_up(f"{served.address}/second:1").index
    assert "mutable" not in pull(store, f"{served.address}/second@{index}", "fixed").facts
    assert "a tag" in pull(store, f"{served.address}/second:1", "by-tag").facts["mutable"]
    assert not list((store.home / "making").iterdir())


def test_a_tag_that_moved_gives_the_new_image_and_the_digest_the_old_one(
    store: Store, served: Registry, tmp_path: Path
) -> None:
    """A name is what it is now; a digest is what it always was."""
    pushed(served, tmp_path / "old", "app:2", b"old")
    old = pull(store, f"{served.address}/app:2", "made")
    pushed(served, tmp_path / "new", "app:2", b"new")
    new = pull(store, f"{served.address}/app:2", "made")
    assert store.resolve("made").digest == new.digest != old.digest
    again = pull(store, f"{served.address}/app@{old.facts['index_digest']}", "made")
    assert again.digest == old.digest


def test_an_image_is_pulled_once_however_many_wait_for_it(store: Store, served: Registry, tmp_path: Path) -> None:
    """Four processes at once: the registry is asked for the two blobs one time, and all get the template."""
    pushed(served, tmp_path / "image", "app:3", b"wanted by many")
    before = served.blobs_asked()
    words = [sys.executable, "-c", PULL, str(store.home), f"{served.address}/app:3"]
    makers = [subprocess.Popen([*words, f"name{n}"], stdout=subprocess.PIPE) for n in range(4)]
    assert len({maker.communicate()[0] for maker in makers}) == 1
    assert [maker.returncode for maker in makers] == [0] * 4
    assert served.blobs_asked() - before == 2
    assert len(store.list()) == 4


def test_what_is_lacking_is_pulled_again(store: Store, served: Registry, tmp_path: Path) -> None:
    """A layer that somebody removed by hand is named where the template is asked for, and the next pull brings it."""
    pushed(served, tmp_path / "image", "lacking:1")
    made = pull(store, f"{served.address}/lacking:1", "made")
    remove_tree(Path(made.layers[0].source).parent)
    with pytest.raises(StoreFailed, match=f"its layer {made.layers[0].digest} is not in"):
        store.resolve("made")
    again = pull(store, f"{served.address}/lacking:1", "made")
    assert again.digest == made.digest == store.resolve("made").digest
    assert (Path(again.layers[0].source) / "file").read_bytes() == b"content"


@pytest.mark.parametrize("form", ["oci", "v2s2"])
def test_only_what_is_missing_is_fetched(store: Store, served: Registry, tmp_path: Path, form: str) -> None:
    """An image over layers that another one brought: its own layer comes, and theirs do not; no two are mixed up."""
    base, top = [member("base", form.encode() * 100)], [member("top", form.encode() * 200)]
    for name, layers in (("base", [base]), ("app", [base, top]), ("other", [top, base])):
        layout = Layout(tmp_path / name)
        layout.done(layout.image(layers, packing="gzip"))
        served.push(layout.top, f"app:{form}-{name}", form)
    pull(store, f"{served.address}/app:{form}-base", "base")
    before = served.blobs_asked()
    made = pull(store, f"{served.address}/app:{form}-app", "made")
    assert made.facts["layers_pulled"] == "1 of 2"
    assert served.blobs_asked() - before == 3  # its layer, and its configuration twice
    assert [sorted(os.listdir(layer.source)) for layer in made.layers] == [["top"], ["base"]]
    other = pull(store, f"{served.address}/app:{form}-other", "other")
    assert other.facts["layers_pulled"] == "2 of 2"  # whose directories are can depend on what is below
    store.close()
    for name in ("base", "made", "other"):
        store.remove(name)
    store.collect()
    assert not list((store.home / "blobs").iterdir())
    again = pull(store, f"{served.address}/app:{form}-app", "made")
    assert (again.facts["layers_pulled"], again.digest) == ("2 of 2", made.digest)


def test_what_a_registry_does_not_have_leaves_nothing(store: Store, served: Registry) -> None:
    """The message says what was asked for and what the answer was."""
    with pytest.raises(StoreFailed, match="app:none"):
        pull(store, f"{served.address}/app:none", "made")
    assert store.list() == ()
    assert not store.home.exists() or not list(store.home.rglob("making/*"))


@pytest.mark.parametrize(
    "reference", ["", "-v", "--all", "a b", "UP:", "x@sha256:0", "../x", "a/../b", "docker://x", "x:tag:tag@y", "é"]
)
def test_what_is_no_reference_is_refused(store: Store, reference: str) -> None:
    """Nothing that could be read as an option or a path gets to another program."""
    with pytest.raises(InvalidInput):
        pull(store, reference, "made")


def test_references_are_taken_apart_as_engines_do() -> None:
    """A colon in the last part is a tag, one before it a port."""
    digest = "sha256:" + "0" * 64
    assert registry.parse("debian") == ("debian", "latest", "")
    assert registry.parse("localhost:5000/a/b:1.0") == ("localhost:5000/a/b", "1.0", "")
    assert registry.parse(f"ghcr.io/a/b:1@{digest}") == ("ghcr.io/a/b", "1", digest)
    assert registry.parse("[::1]:5000/a")[0] == "[::1]:5000/a"


def test_only_a_registry_on_this_machine_may_be_without_tls() -> None:
    """An address that somebody else can be behind is never asked in the clear."""
    ours = ("127.0.0.1:5000/a", "localhost/a", "localhost:1/a", "[::1]:5000/a")
    others = ("debian", "localhost", "127.0.0.1.example.org/a", "localhost.example.org/a", "10.0.0.1:5000/a", "[::2]/a")
    assert all(map(registry.is_loopback, ours))
    assert not any(map(registry.is_loopback, others))


def test_without_skopeo_the_remedy_is_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to install."""
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(Refused, match="apt install skopeo"):
        pull(store, "debian:12", "made")
