"""COPY and ADD: what is copied, to where, whose it is, and that no link leads out of a context or a root."""

from __future__ import annotations

import os
import stat
import tarfile
from pathlib import Path

import pytest
from tests.build.conftest import Builds, text
from tests.templates.layouts import Layout, folder, member, tar

from proofbox.errors import InvalidInput
from proofbox.host.idmap import find_ids
from proofbox.templates.images import import_path
from proofbox.templates.store import Store
from proofbox.templates.tree import CAPABILITY, seen_owner
from proofbox.templates.tree import attributes as read_attributes
from proofbox.templates.view import View, names_of

pytestmark = pytest.mark.anyio


def found(template: object, path: str) -> os.stat_result | None:
    """What is seen at a path of a template."""
    seen = View.of(template).find(names_of(path))  # type: ignore[arg-type] # any template
    return seen.found if seen else None


async def test_files_and_directories_go_where_engines_put_them(copies: Builds) -> None:
    """A file to a name or into a directory, a directory's content, several by a pattern; what is missing is made."""
    for name in ("a.txt", "b.txt", "src/c", "src/sub/d"):
        copies.add(name, name)
    made = await copies(
        "FROM scratch\nWORKDIR /w\nCOPY a.txt name\nCOPY a.txt dir/\nCOPY src .\nCOPY src /t/u\nCOPY *.txt /p/\n"
        "COPY . /all"
    )
    for path, content in {
        "w/name": "a.txt",
        "w/dir/a.txt": "a.txt",
        "w/c": "src/c",
        "w/sub/d": "src/sub/d",
        "t/u/c": "src/c",
        "p/b.txt": "b.txt",
        "all/src/sub/d": "src/sub/d",
    }.items():
        assert text(made, path) == content, path


@pytest.mark.parametrize(
    ("step", "what"),
    [
        ("COPY none /x", "'none' is not in"),
        ("COPY *.none none /x/", "'none' is not in"),
        ("COPY *.none a* /x/\nCOPY *.none /y", None),
        ("COPY [z-a] /x", "bad character range"),
        ("COPY a /f\nCOPY dir /f", "/f is there and no directory"),
        ("COPY a /f\nCOPY b /f/x/y", "/f is there and no directory"),
        ("COPY a /t/dir\nCOPY . /t/", "/t/dir is there and no directory"),
        ("COPY a /f\nWORKDIR /f", "/f is there and no directory"),
        ("COPY a /f\nWORKDIR /f/x", "/f is there and no directory"),
        ("COPY a b /x", "end it with '/'"),
        ("COPY a /dir", None),
        ("COPY dir/a /taken\nCOPY a /taken", None),
        ("COPY dir /d\nCOPY --chown=nobody a /x", "owner 'nobody'"),
        ("COPY dir /taken/a\nCOPY a /taken/", "is a directory"),
        ("COPY --from=UPPER! a b", "image reference"),
    ],
)
async def test_what_cannot_be_copied_is_told_with_its_line(copies: Builds, step: str, what: str | None) -> None:
    """A file that is not there, two into one name, an unknown owner, a file over a directory."""
    for name in ("a", "b", "dir/a"):
        copies.add(name)
    if what is None:
        await copies(f"FROM scratch\n{step}")
        return
    with pytest.raises(InvalidInput, match=f"line [23]: .*{what}"):
        await copies(f"FROM scratch\n{step}", "wrong")
    assert "wrong" not in [template.name for template in copies.store.list()]


async def test_no_link_of_a_context_leads_out_of_it(copies: Builds, tmp_path: Path) -> None:
    """A link that is copied stays a link; one that is named, or gone through, ends at the context's root."""
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/key").write_text("secret")
    copies.add("real/file", "inside")
    for name, target in {
        "up": "../secret",
        "abs": str(tmp_path / "secret"),
        "dir": "../secrets",
        "in": "/real",
    }.items():
        (copies.context / name).symlink_to(target)
    made = await copies("FROM scratch\nCOPY . /all/\nCOPY in/file /through\nCOPY in /named")
    assert stat.S_ISLNK((found(made, "all/up") or os.lstat("/")).st_mode)
    assert (text(made, "through"), text(made, "named/file")) == ("inside", "inside")
    for named in ("up", "abs", "dir/key", "dir", "../secret"):
        with pytest.raises(InvalidInput, match="is not in"):
            await copies(f"FROM scratch\nCOPY {named} /x")
    await copies("FROM scratch\nCOPY d*r/key /x")
    files = [path for path in (copies.store.home / "trees").rglob("tree/**/*") if path.is_file()]
    assert not [file for file in files if not file.is_symlink() and b"secret" in file.read_bytes()]


async def test_no_link_of_a_root_leads_out_of_it(copies: Builds, tmp_path: Path) -> None:
    """A target that goes through links of the layers below stays inside, whatever they name."""
    (tmp_path / "victim").mkdir()
    copies.add("file", "evil")
    (copies.context / "root").mkdir()
    (copies.context / "root/door").symlink_to(tmp_path / "victim")
    made = await copies("FROM scratch\nCOPY root /\nCOPY file /door/")
    assert os.listdir(tmp_path / "victim") == []
    assert text(made, f"{tmp_path}/victim/file") == "evil"


async def test_owners_and_modes_are_as_asked(copies: Builds) -> None:
    """Root's by default, whoever has them in the context; names are those of the template."""
    copies.add("passwd", "me:x:7:8::/:\n")
    copies.add("group", "us:x:9:\n").chmod(0o4640)
    made = await copies(
        "FROM scratch\nCOPY passwd group /etc/\nCOPY --chown=me:us --chmod=0711 group /x\nCOPY --chown=me passwd /y"
    )
    owners = [(each.st_uid, each.st_gid) for path in ("etc/group", "x", "y") if (each := found(made, path))]
    if os.geteuid() == 0:
        assert owners == [(0, 0), (7, 9), (7, 7)]
    assert stat.S_IMODE((found(made, "x") or os.lstat("/")).st_mode) == 0o711
    assert stat.S_IMODE((found(made, "etc/group") or os.lstat("/")).st_mode) == 0o4640


async def test_ignored_files_are_no_part_of_a_context(copies: Builds) -> None:
    """Neither copied, nor do their changes matter."""
    for name in ("keep", "a.log", "d/b.log", "d/keep.log"):
        copies.add(name)
    copies.add(".dockerignore", "**/*.log\n!d/../d/keep.log\n.dockerignore\n")
    made = await copies("FROM scratch\nCOPY . /")
    assert [text(made, name) for name in ("keep", "d/keep.log", "a.log", "d/b.log")] == ["", "", None, None]
    copies.add("a.log", "changed")
    again = await copies("FROM scratch\nCOPY . /")
    assert (again.digest, copies.kept) == (made.digest, [True])
    with pytest.raises(InvalidInput, match="ignored"):
        await copies("FROM scratch\nCOPY a.log /")


async def test_archives_are_unpacked_by_add_alone(copies: Builds, tmp_path: Path) -> None:
    """A tar of the context is; below its target, with its own owners, and nothing of it leaves the root."""
    copies.add("inner/file", "inner")
    with tarfile.open(copies.context / "a.tar.gz", "w:gz") as made:
        made.add(copies.context / "inner", arcname=".")
    template = await copies("FROM scratch\nADD a.tar.gz /x/\nCOPY a.tar.gz /y/\nADD inner/file /z/")
    assert text(template, "x/file") == "inner"
    assert found(template, "y/a.tar.gz")
    assert text(template, "z/file") == "inner"
    copies.add("plain", "no archive " * 100)
    copies.add("empty")
    template = await copies("FROM scratch\nADD plain empty /x/")
    assert text(template, "x/plain") == "no archive " * 100
    assert text(template, "x/empty") == ""
    with pytest.raises(InvalidInput, match="/f is there and no directory"):
        await copies("FROM scratch\nCOPY plain /f\nADD a.tar.gz /f")
    with tarfile.open(copies.context / "evil.tar", "w") as made:
        made.add(copies.context / "inner/file", arcname="../../outside")
    with pytest.raises(InvalidInput, match="leaves the tree"):
        await copies("FROM scratch\nADD evil.tar /x/")


async def test_an_archive_that_unpacks_to_more_than_is_allowed_is_given_up(
    copies: Builds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for images, with the line of the step; and so is a plain file."""
    copies.add("zeros", "0" * (2 << 20))
    with tarfile.open(copies.context / "bomb.tar.gz", "w:gz") as made:
        made.add(copies.context / "zeros", arcname="zeros")
    monkeypatch.setenv("PROOFBOX_UNPACK_BYTES", "1M")
    for step in ("ADD bomb.tar.gz /x/", "COPY zeros /x/"):
        with pytest.raises(InvalidInput, match=r"line 2: .*1048576 bytes.*PROOFBOX_UNPACK_BYTES"):
            await copies(f"FROM scratch\n{step}")
    assert not list((copies.store.home / "making").iterdir())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
async def test_a_file_that_cannot_be_read_is_named(copies: Builds) -> None:
    """It is the caller's to mend, by its mode or by leaving it out."""
    whole = Builds(copies.store, Path("/etc"))
    with pytest.raises(InvalidInput, match=r"line 2: .*shadow' cannot be read: Permission denied.*\.dockerignore"):
        await whole("FROM scratch\nCOPY shadow /x/")
    with pytest.raises(InvalidInput, match=r"line 2: '/root' cannot be read: Permission denied"):
        await Builds(copies.store, Path("/"))("FROM scratch\nCOPY root /x/")


async def test_stages_and_templates_are_copied_from(copies: Builds, store: Store) -> None:
    """A stage by name or number, also one that is no base; a template of the store."""
    copies.add("f", "one")
    await copies("FROM scratch\nCOPY f /there", "other")
    made = await copies(
        "FROM scratch AS first\nCOPY f /d/f\nFROM scratch AS unused\nCOPY none /\n"
        "FROM scratch\nCOPY --from=first /d /x\nCOPY --from=0 d/f /y\nCOPY --from=other there /z"
    )
    assert [text(made, path) for path in ("x/f", "y", "z")] == ["one"] * 3
    assert text(made, "d/f") is None


async def test_only_what_is_copied_matters_to_a_step(copies: Builds) -> None:
    """Another content, mode or name is another layer; times and other files are not."""
    file = copies.add("f", "one")
    recipe = "FROM scratch\nCOPY f /\nWORKDIR /w"
    first = await copies(recipe)
    copies.add("other", "x")
    os.utime(file, (1, 1))
    assert ((await copies(recipe)).digest, copies.kept) == (first.digest, [True, True])
    file.chmod(0o755)
    second = await copies(recipe)
    assert copies.kept == [False, False]
    copies.add("f", "two")
    third = await copies(recipe)
    assert len({first.digest, second.digest, third.digest}) == 3


async def test_what_comes_of_a_stage_is_whose_it_was_there(copies: Builds, store: Store, tmp_path: Path) -> None:
    """Owners and attributes, file capabilities too, go along from another template, unless an owner is named; a file of
    the context is root's, whoever has it here.
    """
    capability = "\1\0\0\2\0\4" + 14 * "\0"
    archive = tmp_path / "other.tar"
    attributes = {"user.kept": "1", **({CAPABILITY: capability} if os.geteuid() == 0 else {})}
    archive.write_bytes(tar(folder("d", owner=5), member("d/f", b"x", owner=5, mode=0o600, xattrs=attributes)))
    store.import_tar(archive, "other")
    copies.add("f")
    made = await copies("FROM scratch\nCOPY --from=other / /a\nCOPY --from=other --chown=6:7 /d/f /b\nCOPY f /c")
    kept = 5 if os.geteuid() == 0 else 0  # an import has no owners without root
    given = 6 if find_ids().users else 0
    for path, owner in {"a/d": kept, "a/d/f": kept, "b": given, "c": 0}.items():
        seen = found(made, path)
        assert seen is not None
        assert seen_owner(seen)[0] == owner, path
    place = View.of(made).find(names_of("a/d/f"))
    assert place is not None
    assert {name: value.decode() for name, value in read_attributes(place.path).items()} == attributes


async def test_zeros_are_no_archive(copies: Builds) -> None:
    """An image of a disk begins with zeros, as the end of an archive does: ADD copies it as it is."""
    (copies.context / "disk.img").write_bytes(bytes(20_000))
    assert text(await copies("FROM scratch\nADD disk.img /d/"), "d/disk.img") == 20_000 * "\0"


async def test_a_base_that_wants_more_instructions_is_refused(copies: Builds, store: Store, tmp_path: Path) -> None:
    """ONBUILD in an image is what its maker counts on; leaving it out in silence would build something else."""
    layout = Layout(tmp_path / "layout")
    import_path(store, layout.done(layout.image([[member("f")]], {"OnBuild": ["COPY . /app"]})), "waiting")
    with pytest.raises(InvalidInput, match=r"line 1: .*ONBUILD.*COPY \. /app"):
        await copies("FROM waiting\nENV A=1")


async def test_what_another_user_owns_inside_stays_its_own(builds: Builds) -> None:
    """A directory that is closed to all others is copied into and out of, and neither it nor what is in it changes
    hands; so without root too, where the host lends ids.
    """
    if not find_ids().users:
        pytest.skip("this host lends this user no ids")
    builds.add("f", "new")
    made = await builds(
        "FROM host AS own\nRUN mkdir /own && echo old > /own/old && chown -R 5:6 /own && chmod 700 /own\n"
        "COPY --chown=7 --chmod=4755 f /own/f\nWORKDIR /own/w\nFROM own\nCOPY --from=own /own /copy\n"
        "RUN stat -c '%n %u:%g %a' /own /own/* /copy/*"
    )
    seen = ["/own 5:6 700", "/own/f 7:7 4755", "/own/old 5:6 644", "/own/w 0:0 755", "/copy/old 5:6 644"]
    assert builds.output.decode().splitlines() == [*seen[:4], "/copy/f 7:7 4755", seen[4], "/copy/w 0:0 755"]
    assert made.cwd == "/own/w"
