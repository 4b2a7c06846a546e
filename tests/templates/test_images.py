"""Images: what each layer adds and removes, what is checked, and what is refused."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.templates.layouts import Layout, Member, digest, folder, member, saved, tar

from proofbox.errors import InvalidInput, UnknownTemplate
from proofbox.model.template import Template, mountable
from proofbox.templates.below import Below, is_opaque
from proofbox.templates.image import Manifest, architecture, manifest_of
from proofbox.templates.images import import_path
from proofbox.templates.store import Store
from proofbox.templates.tree import is_whiteout

LNK, SYM = tarfile.LNKTYPE, tarfile.SYMTYPE
BASE = [folder("d", 0o750), member("d/a", b"a"), member("d/b", b"b"), member("f", b"f"), folder("tmp", 0o1777)]


def imported(store: Store, top: Path, *layers: Sequence[Member], **config: Any) -> Template:
    """The template of an image with these layers, the lowest first."""
    layout = Layout(top)
    return import_path(store, layout.done(layout.image(layers, config)), "made")


def seen(template: Template, path: str) -> Path | None:
    """Where on the host an overlay of the layers would find it; None if it would not."""
    found = Below([layer.source for layer in template.layers]).find(tuple(map(os.fsencode, path.split("/"))))
    return Path(os.fsdecode(found.path)) if found else None


@pytest.mark.parametrize("packing", ["plain", "gzip", "zstd"])
def test_every_packing_gives_the_same_template(store: Store, tmp_path: Path, packing: str) -> None:
    """It is what a layer holds that counts; the blobs are not kept."""
    layout = Layout(tmp_path / packing)
    made = import_path(store, layout.done(layout.image([BASE], packing=packing)), packing)
    plain = imported(store, tmp_path / "other", BASE)
    assert made.digest == plain.digest
    assert (Path(made.layers[0].source) / "d/a").read_text() == "a"


def test_the_configuration_becomes_the_template(store: Store, tmp_path: Path) -> None:
    """Environment, directory and user are what commands get; what nobody obeys is on record."""
    config = {
        "Env": ["PATH=/x", "A=b=c"],
        "WorkingDir": "/d/../d",
        "User": "1000:1000",
        "Entrypoint": ["/run", "it"],
        "Cmd": ["now"],
        "ExposedPorts": {"80/tcp": {}},
        "Labels": {"a": "b"},
    }
    made = imported(store, tmp_path / "image", BASE, **config)
    assert (made.env, made.cwd, made.user) == ({"PATH": "/x", "A": "b=c"}, "/d", "1000:1000")
    assert (made.facts["entrypoint"], made.facts["cmd"]) == ('["/run","it"]', '["now"]')
    assert made.facts["exposed_ports"] == '["80/tcp"]'
    assert store.resolve("made") == made


def test_a_layer_removes_what_is_below_and_nothing_of_its_own(store: Store, tmp_path: Path) -> None:
    """Whiteouts count for the layers below only, wherever in the archive they come."""
    top = [folder("d", 0o750), member("d/.wh.a"), member("d/b", b"new"), member("d/.wh.b"), member(".wh.f")]
    made = imported(store, tmp_path / "image", BASE, top)
    assert seen(made, "d/a") is seen(made, "f") is None
    assert (seen(made, "d/b") or Path()).read_text() == "new"
    assert is_whiteout((Path(made.layers[0].source) / "f").lstat())


def test_an_opaque_directory_hides_all_that_was_in_it(store: Store, tmp_path: Path) -> None:
    """Also what comes before its mark in the archive stays, and removals inside it are not needed."""
    top = [folder("d", 0o750), member("d/new", b"n"), member("d/.wh..wh..opq"), member("d/.wh.a")]
    made = imported(store, tmp_path / "image", BASE, top)
    assert seen(made, "d/a") is seen(made, "d/b") is None
    assert sorted(os.listdir(Path(made.layers[0].source) / "d")) == ["new"]
    assert is_opaque(Path(made.layers[0].source) / "d")


STRAY: dict[str, tuple[list[list[Member]], dict[str, list[str]]]] = {
    "of what was never there": ([[member("a")], [member("d/.wh.b"), member("d/x")]], {"": ["d"], "d": ["x"]}),
    "in a directory that it makes": ([[member("a")], [member("d/.wh.b")]], {"": ["d"], "d": []}),
    "in a directory that it removes": (
        [[member("d/old")], [member("d/.wh.old"), member(".wh.d"), member("d/new")]],
        {"": ["d"], "d": ["new"]},
    ),
    "below one that it removes": ([[member("d/e/old")], [member("d/e/.wh.old"), member(".wh.d")]], {"": ["d"]}),
    "and makes again": (
        [[member("d/e/old")], [member("d/e/.wh..wh..opq"), member(".wh.d")]],
        {"": ["d"], "d": ["e"], "d/e": []},
    ),
    "of all that was never there": ([[member("d/.wh..wh..opq")]], {"": ["d"], "d": []}),
}
"""Of two layers the upper one, and what lies in its directories then: a whiteout in one that hides nothing would be
listed, and could be neither looked at nor removed.
"""


@pytest.mark.parametrize("what", STRAY)
def test_a_removal_leaves_its_mark_only_where_it_hides_something(store: Store, tmp_path: Path, what: str) -> None:
    """What is said to be removed, and is not there, is no entry of its own; the directory that is named is there."""
    layers, listed = STRAY[what]
    made = imported(store, tmp_path / "image", *layers)
    top = Path(made.layers[0].source)
    assert {name: sorted(os.listdir(top / name)) for name in listed} == listed
    assert len(list(top.rglob("*"))) == sum(map(len, listed.values()))


def test_a_directory_in_place_of_a_removed_one_starts_empty(store: Store, tmp_path: Path) -> None:
    """Removed and made again in one layer: nothing of the old one shows."""
    made = imported(store, tmp_path / "image", BASE, [member(".wh.d"), folder("d"), member("d/c", b"c")])
    assert seen(made, "d/a") is None
    assert (seen(made, "d/c") or Path()).read_text() == "c"


def test_an_opaque_root_leaves_the_layers_below_out(store: Store, tmp_path: Path) -> None:
    """An overlay does not look for the mark at the root, so what it hides is not stacked."""
    made = imported(store, tmp_path / "image", BASE, [member(".wh..wh..opq"), member("only", b"1")])
    assert len(made.layers) == 1
    assert seen(made, "d/a") is None


def test_directories_that_a_layer_does_not_name_are_as_below(store: Store, tmp_path: Path) -> None:
    """A layer that adds /tmp/x without an entry for /tmp leaves /tmp's mode and owner as they were."""
    made = imported(store, tmp_path / "image", BASE, [member("tmp/x", b"x"), member("d/y", b"y")])
    top = Path(made.layers[0].source)
    assert stat.S_IMODE((top / "tmp").stat().st_mode) == 0o1777
    assert stat.S_IMODE((top / "d").stat().st_mode) == 0o750


def test_a_path_through_a_link_of_a_layer_below_leads_where_it_leads(store: Store, tmp_path: Path) -> None:
    """``bin -> usr/bin`` below: ``bin/x`` is put into usr/bin, and one that points out of the root stays inside."""
    base = [folder("usr/bin"), member("bin", kind=SYM, target="usr/bin"), member("out", kind=SYM, target="../../../up")]
    made = imported(store, tmp_path / "image", base, [member("bin/x", b"x"), member("out/y", b"y")])
    top = Path(made.layers[0].source)
    assert (top / "usr/bin/x").read_text() == "x"
    assert (top / "up/y").read_text() == "y"
    assert not os.path.lexists(top / "bin")
    assert not (tmp_path / "up").exists()


def test_hard_links_hold_within_and_across_layers(store: Store, tmp_path: Path) -> None:
    """Two names of one file; a link to a file of a lower layer brings that up, as writing to it would."""
    base = [member("a", b"one"), member("b", kind=LNK, target="a")]
    made = imported(store, tmp_path / "image", base, [member("c", kind=LNK, target="/a")])
    low, top = Path(made.layers[1].source), Path(made.layers[0].source)
    assert (low / "a").stat().st_ino == (low / "b").stat().st_ino
    assert (top / "a").stat().st_ino == (top / "c").stat().st_ino
    assert (top / "c").read_text() == "one"


def test_times_are_kept_and_hostile_attributes_are_not(store: Store, tmp_path: Path) -> None:
    """Compiled Python files name their source's time; an attribute for the overlay would redirect what is seen."""
    evil = {"user.overlay.redirect": "/etc", "user.kept": "1"}
    made = imported(store, tmp_path / "image", [member("f", b"f", xattrs=evil)])
    file = Path(made.layers[0].source) / "f"
    assert file.stat().st_mtime == 1_000_000_000
    assert os.listxattr(file) == ["user.kept"]
    assert "f" in made.facts["overlay attributes left out"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_owners_are_those_of_the_image(store: Store, tmp_path: Path) -> None:
    """As root files have the ids that they have inside; one that no sandbox has becomes nobody's, and that is noted."""
    made = imported(store, tmp_path / "image", [member("f", owner=1000), member("g", owner=70_000)])
    top = Path(made.layers[0].source)
    assert ((top / "f").stat().st_uid, (top / "g").stat().st_uid) == (1000, 65534)
    assert "g" in made.facts["owners from 65536 on given to nobody"]


def test_an_old_archive_of_docker_save_is_an_image(store: Store, tmp_path: Path) -> None:
    """Its layers may be links to one another; a tag chooses one of several images."""
    top = [member("d/.wh.a")]
    archive = saved(tmp_path / "saved.tar", [BASE, top, top], {"Env": ["A=b"]})
    made = import_path(store, archive, "made", reference="made:1")
    assert made.env["A"] == "b"
    assert seen(made, "d/a") is None
    with pytest.raises(InvalidInput, match="it has: made:1"):
        import_path(store, archive, "other", reference="made:2")


def test_a_packed_layout_is_an_image_and_a_packed_tree_is_a_root(store: Store, tmp_path: Path, tree: Path) -> None:
    """What an archive is shows when it is open."""
    layout = Layout(tmp_path / "layout")
    layout.done(layout.image([BASE]))
    for source, name in ((layout.top, "image"), (tree, "root")):
        with tarfile.open(tmp_path / name, "w:gz") as made:
            made.add(source, arcname=".")
        import_path(store, tmp_path / name, name)
    assert store.resolve("image").facts["image_digest"].startswith("sha256:")
    assert store.resolve("root").digest == store.import_directory(tree, "again").digest
    assert not list((store.home / "making").iterdir())


def test_this_machines_image_is_picked(store: Store, tmp_path: Path) -> None:
    """Of several architectures ours; an index without it is refused with what it has; attestations are no image."""
    layout = Layout(tmp_path / "image")
    strange = layout.image([[member("f", b"strange")]], machine="m68k")
    ours = layout.image([[member("f", b"ours")]], machine=architecture()[0])
    other = {**strange, "platform": {"architecture": "unknown", "os": "unknown"}}
    index = layout.document({"schemaVersion": 2, "manifests": [other, strange, ours]}, "index.v1+json")
    made = import_path(store, layout.done(index), "made")
    assert (Path(made.layers[0].source) / "f").read_text() == "ours"
    alone = layout.document({"schemaVersion": 2, "manifests": [strange]}, "index.v1+json")
    with pytest.raises(InvalidInput, match="linux/m68k"):
        import_path(store, layout.done(alone), "made")
    with pytest.raises(InvalidInput, match="m68k"):
        import_path(store, layout.done({**strange, "platform": None}), "made")
    named = {"annotations": {"org.opencontainers.image.ref.name": "1"}}
    chosen = import_path(store, layout.done({**ours, **named}, {**strange, **named}), "made", reference="1")
    assert chosen.digest == made.digest


def test_one_of_several_images_is_named_as_docker_names_it(store: Store, tmp_path: Path) -> None:
    """By its whole name, as users write it or as it is written; one tag for two images names neither."""
    layout = Layout(tmp_path / "image")
    both = [
        layout.image(
            [[member("f", name.encode())]],
            annotations={
                "org.opencontainers.image.ref.name": "1",
                "io.containerd.image.name": f"docker.io/library/{name}:1",
            },
        )
        for name in ("a", "b")
    ]
    top = layout.done(*both)
    for name in ("a:1", "docker.io/library/a:1"):
        made = import_path(store, top, "made", reference=name)
        assert (Path(made.layers[0].source) / "f").read_text() == "a"
    for reference in (None, "1"):
        with pytest.raises(InvalidInput, match=r"several images \(a:1, b:1\)"):
            import_path(store, top, "made", reference=reference)
    with pytest.raises(InvalidInput, match=r"no image 'c:1' in it \(it has: a:1, b:1\)"):
        import_path(store, top, "made", reference="c:1")
    assert import_path(store, layout.done(both[1]), "made", reference="1").facts["reference"] == "1"


EVIL: dict[str, list[Member]] = {
    "dots": [member("../outside", b"x")],
    "whiteout of the parent": [member("d/.wh...")],
    "whiteout without a name": [member(".wh.")],
    "whiteout outside": [member("../.wh.outside")],
    "opaque outside": [member("../.wh..wh..opq")],
    "through its own link": [member("door", kind=SYM, target="{out}"), member("door/outside", b"x")],
    "whiteout through its own link": [member("door", kind=SYM, target="{out}"), member("door/.wh.secret")],
    "opaque through its own link": [member("door", kind=SYM, target="{out}"), member("door/.wh..wh..opq")],
    "hard link out": [member("peek", kind=LNK, target="{out}/secret")],
    "hard link through its own link": [
        member("door", kind=SYM, target="{out}"),
        member("peek", kind=LNK, target="door/secret"),
    ],
    "hard link through a link below": [member("peek", kind=LNK, target="below/secret")],
    "links without end": [member("loop/x", b"x")],
}


@pytest.mark.parametrize("what", EVIL)
def test_a_layer_that_leaves_its_root_is_refused(store: Store, tmp_path: Path, what: str) -> None:
    """Neither entries nor removals nor links reach outside, whatever a lower layer has prepared; nothing is left."""
    outside = tmp_path / "out"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    base = [member("below", kind=SYM, target=str(outside)), member("loop", kind=SYM, target="loop")]
    for info, _ in EVIL[what]:
        info.linkname = info.linkname.replace("{out}", str(outside))
    with pytest.raises(InvalidInput):
        imported(store, tmp_path / "image", base, EVIL[what])
    assert os.listdir(outside) == ["secret"]
    assert os.listxattr(outside) == []
    assert not list(tmp_path.rglob("outside"))
    assert not list((store.home / "making").iterdir())
    with pytest.raises(UnknownTemplate):
        store.resolve("made")


@pytest.mark.parametrize("digest_of", ["config", "layers"])
@pytest.mark.parametrize("name", ["../../escape", "/etc/passwd", "sha256:../../x", "sha256:" + "0" * 63, ""])
def test_what_a_manifest_names_by_no_digest_is_refused(digest_of: str, name: str) -> None:
    """Before it becomes the name of a file that is read, made or removed."""
    blob, good = {"digest": name, "size": 1}, {"digest": digest(b""), "size": 1}
    manifest: dict[str, Any] = {"config": good, "layers": [good]}
    assert isinstance(manifest_of(json.dumps(manifest).encode(), "this"), Manifest)
    manifest[digest_of] = blob if digest_of == "config" else [good, blob]
    with pytest.raises(InvalidInput, match="is not sha256"):
        manifest_of(json.dumps(manifest).encode(), "this")


def test_an_image_may_have_a_layer_twice(store: Store, tmp_path: Path) -> None:
    """What is mounted has it once, on top, where it hides the other; what is recorded is the image's."""
    one, two = [member("a", b"1")], [member("a", b"2"), member("b", b"2")]
    made = imported(store, tmp_path / "image", one, two, one)
    assert len(made.layers) == 3
    mounted = mountable(made)
    assert [layer.digest for layer in mounted.layers] == [layer.digest for layer in made.layers[:2]]
    assert mountable(mounted) is mounted


ZEROS = member("zeros", b"\0" * (3 << 20))
BOMBS: dict[str, tuple[str, str, list[list[Member]]]] = {
    "one file": ("BYTES", "1M", [[ZEROS]]),
    "two layers together": ("BYTES", "4M", [[ZEROS], [member("more", b"\0" * (3 << 20))]]),
    "bytes of a header": ("BYTES", "100K", [[member("x", xattrs={"user.x": "0" * 200_000})]]),
    "files": ("FILES", "3", [[member(name) for name in "abcd"]]),
    "directories that nobody names": ("FILES", "20", [[member("/".join("d" * 30))]]),
}


@pytest.mark.parametrize("what", BOMBS)
def test_an_image_that_unpacks_to_more_than_is_allowed_is_given_up(
    store: Store, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small blob must not fill the disk. The message names the layer, the limit and how to allow more."""
    variable, limit, layers = BOMBS[what]
    monkeypatch.setenv(f"PROOFBOX_UNPACK_{variable}", limit)
    layout = Layout(tmp_path / "image")
    image = layout.done(layout.image(layers, packing="gzip"))
    with pytest.raises(InvalidInput, match=rf"layer {len(layers)} of sha256.* more than .*PROOFBOX_UNPACK_{variable}"):
        import_path(store, image, "made")
    assert not list((store.home / "making").iterdir())
    with pytest.raises(UnknownTemplate):
        store.resolve("made")
    monkeypatch.setenv(f"PROOFBOX_UNPACK_{variable}", "1G")
    assert seen(import_path(store, image, "made"), layers[0][0][0].name)


def test_a_root_file_system_has_the_same_limit_and_nonsense_is_told(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive and a directory alike, and a limit that is no number is an error and not no limit."""
    (tmp_path / "root/etc").mkdir(parents=True)
    (tmp_path / "root/etc/big").write_bytes(b"\0" * (2 << 20))
    (tmp_path / "root.tar").write_bytes(tar(folder("etc"), member("etc/big", b"\0" * (2 << 20))))
    monkeypatch.setenv("PROOFBOX_UNPACK_BYTES", "1M")
    for source in ("root", "root.tar"):
        with pytest.raises(InvalidInput, match=rf"{source}.*1048576 bytes"):
            import_path(store, tmp_path / source, "made")
    monkeypatch.setenv("PROOFBOX_UNPACK_BYTES", "much")
    with pytest.raises(InvalidInput, match="'much'"):
        import_path(store, tmp_path / "root", "made")
    assert list(store.layers) == []


def raw(kind: bytes, content: bytes, name: str = "x") -> bytes:
    """One block of an archive, header and content, as it stands."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    padding = b"\0" * (-len(content) % 512)
    return info.tobuf(tarfile.GNU_FORMAT) + content + padding


def pax(key: bytes, value: bytes) -> bytes:
    """An extended header that says this."""
    record = b" %s=%s\n" % (key, value)
    length = len(record) + 2
    length = len(record) + len(str(length))
    return raw(tarfile.XHDTYPE, str(length).encode() + record)


ABSURD = {
    "a huge header": raw(tarfile.XHDTYPE, b"0" * (2 << 20)) + raw(b"0", b""),
    "a huge name": raw(tarfile.GNUTYPE_LONGNAME, b"n" * (2 << 20)) + raw(b"0", b""),
    "headers about headers": raw(tarfile.GNUTYPE_LONGNAME, b"n\0") * 3000 + raw(b"0", b""),
    "a name that no file can have": raw(tarfile.GNUTYPE_LONGNAME, b"n" * 300 + b"\0") + raw(b"0", b""),
    "a null in a name": pax(b"path", b"a\0b") + raw(b"0", b""),
    "a null in a link": pax(b"linkpath", b"a\0b") + raw(tarfile.SYMTYPE, b""),
    "a link to nothing": raw(tarfile.SYMTYPE, b""),
    "an unknown kind": raw(b"Z", b""),
}


@pytest.mark.parametrize("what", ABSURD)
def test_an_absurd_archive_is_refused_and_not_believed(store: Store, tmp_path: Path, what: str) -> None:
    """Headers that would fill the memory, that never end, or that say what no file system can hold."""
    path = tmp_path / "absurd.tar"
    path.write_bytes(ABSURD[what] + b"\0" * 1024)
    with pytest.raises(InvalidInput):
        import_path(store, path, "made")
    assert list(store.layers) == []
    assert not list((store.home / "making").iterdir())


def test_a_time_beyond_all_measure_is_cut(store: Store, tmp_path: Path) -> None:
    """It is no reason to refuse an image."""
    path = tmp_path / "late.tar"
    path.write_bytes(
        pax(b"mtime", b"1e300") + raw(b"0", b"") + pax(b"mtime", b"-5") + raw(b"0", b"", "y") + b"\0" * 1024
    )
    made = import_path(store, path, "made")
    assert (Path(made.layers[0].source) / "y").stat().st_mtime == 0


def test_a_blob_that_is_not_what_its_digest_says_is_refused(store: Store, tmp_path: Path) -> None:
    """Each of manifest, configuration and layer, changed by a byte, and a layer whose content is another than told."""
    layout = Layout(tmp_path / "image")
    top = layout.done(layout.image([BASE], packing="plain"))
    blobs = sorted((top / "blobs/sha256").iterdir())
    assert len(blobs) == 3
    for blob in blobs:
        data = blob.read_bytes()
        blob.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(InvalidInput, match="has the digest"):
            import_path(store, top, "made")
        blob.write_bytes(data)
    other = layout.done(layout.image([BASE], diff_ids=[digest(tar(*BASE) + b"\0")]))
    with pytest.raises(InvalidInput, match="its content has the digest"):
        import_path(store, other, "made")
    assert list(store.layers) == []


@pytest.mark.parametrize("kind", ["layer.v1.tar+gzip+encrypted", "artifact"])
def test_a_layer_of_another_kind_is_refused(store: Store, tmp_path: Path, kind: str) -> None:
    """What cannot be unpacked is named, and not left out."""
    layout = Layout(tmp_path / "image")
    config = layout.document({"rootfs": {"type": "layers", "diff_ids": [digest(b"")]}}, "config.v1+json")
    manifest = {"schemaVersion": 2, "config": config, "layers": [layout.blob(b"", kind)]}
    with pytest.raises(InvalidInput, match="not a tar archive"):
        import_path(store, layout.done(layout.document(manifest, "manifest.v1+json")), "made")


def test_a_layer_is_unpacked_once_however_many_images_have_it(store: Store, tmp_path: Path) -> None:
    """Four processes import two images over one base at once: they share its layer and what they remember of it."""
    code = (
        "import sys; from pathlib import Path; from proofbox.templates.store import Store\n"
        "from proofbox.templates.images import import_path\n"
        "import_path(Store(Path(sys.argv[1])), Path(sys.argv[2]), sys.argv[3])"
    )
    makers = []
    for number in range(4):
        layout = Layout(tmp_path / f"image{number}")
        top = layout.done(layout.image([BASE, [member(f"own{number % 2}")]]))
        makers.append(subprocess.Popen([sys.executable, "-c", code, str(store.home), str(top), f"made{number}"]))
    assert [maker.wait() for maker in makers] == [0] * 4
    templates = [store.resolve(f"made{number}") for number in range(4)]
    assert len({template.layers[1].digest for template in templates}) == 1
    assert len(list(store.layers)) == 3
    assert len([record for record in (store.home / "unpacked").iterdir() if not record.suffix]) == 3


def test_what_was_collected_is_unpacked_again(store: Store, tmp_path: Path) -> None:
    """What is remembered about a layer does not keep it, and is no promise."""
    made = imported(store, tmp_path / "image", BASE)
    store.close()
    store.remove("made")
    assert list(store.layers) == []
    store.collect()
    assert not list((store.home / "unpacked").iterdir())
    assert import_path(store, tmp_path / "image", "again").digest == made.digest
