"""``proofbox template``: build, check, lock and import as a user has them."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from tests.cli.conftest import Run

pytest.importorskip("dockerfile")


@pytest.fixture
def environment(environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """With a store of the test's own."""
    return environment | {"PROOFBOX_HOME": str(tmp_path / "home")}


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """Files, and a Dockerfile in which nothing runs."""
    top = tmp_path / "context"
    top.mkdir()
    (top / "file").write_text("content")
    (top / "Dockerfile").write_text("ARG TO=/there\nFROM scratch\nARG TO\nCOPY file $TO\nENV A=b\n")
    return top


def test_a_template_is_built_kept_locked_and_checked(proofbox: Run, context: Path) -> None:
    """The log is on standard error, the digest on standard output; the second time each step is kept."""
    first = proofbox("template", "build", str(context), "-t", "made", "--build-arg", "TO=/here")
    assert first.returncode == 0, first.stderr
    assert b"[0 1/1] COPY file $TO" in first.stderr
    again = proofbox("template", "build", str(context), "-t", "made", "--build-arg", "TO=/here")
    assert (again.stdout, b"kept" in again.stderr) == (first.stdout, True)
    locked = json.loads(proofbox("template", "lock", "made").stdout)
    assert first.stdout.split() == [b"made", locked["template"].encode()]
    shown = proofbox("template", "show", "made").stdout
    assert b"env: A=b" in shown
    checked = proofbox("template", "check", str(context))
    assert checked.returncode == 0, checked.stderr
    assert b"both builds are the same" in checked.stdout


def test_what_no_name_leads_to_goes_with_gc(proofbox: Run, context: Path, tmp_path: Path) -> None:
    """An older build under the same name goes, the newer one stays whole; the second time there is nothing."""
    proofbox("template", "build", str(context), "-t", "made", "--build-arg", "TO=/old")
    proofbox("template", "build", str(context), "-t", "made", "--build-arg", "TO=/new")
    layers = tmp_path / "home" / "trees"
    before = len(list(layers.iterdir()))
    assert proofbox("template", "gc").stdout == b"3 things removed\n", "the template, its layer; scratch, that was one"
    assert proofbox("template", "gc").stdout == b"0 things removed\n"
    assert len(list(layers.iterdir())) == before - 1
    making = tmp_path / "home" / "making"
    (making / "left").mkdir()
    (making / "left.lock").touch()
    assert proofbox("template", "gc").stdout == b"1 thing removed\n", "what a killed maker left, swept at the opening"
    assert not list(making.iterdir())
    assert proofbox("template", "lock", "made").returncode == 0


def test_what_is_wrong_with_a_build_is_one_line_with_its_place(proofbox: Run, context: Path) -> None:
    """An instruction that is not supported, a file that is not there, an argument that nobody knows."""
    for text, what in {
        "FROM scratch\nONBUILD RUN x": b"Dockerfile, line 2: ONBUILD is not supported",
        "FROM scratch\n\nCOPY none /": b"Dockerfile, line 3: 'none' is not in",
    }.items():
        (context / "Dockerfile").write_text(text)
        failed = proofbox("template", "build", str(context), "-t", "made")
        assert failed.returncode == 2
        assert what in failed.stderr
    assert proofbox("template", "show", "made").returncode == 2


def test_a_recipe_file_is_built(proofbox: Run, context: Path) -> None:
    """Its ending tells; what is not in it is as in a Dockerfile."""
    (context / "recipe.toml").write_text('base = "scratch"\nsteps = [{copy = "file", to = "/there"}, {workdir = "/w"}]')
    made = proofbox("template", "build", str(context), "-f", str(context / "recipe.toml"), "-t", "made")
    assert made.returncode == 0, made.stderr
    assert b"cwd: /w" in proofbox("template", "show", "made").stdout


def test_an_import_needs_one_source(proofbox: Run, context: Path, tmp_path: Path) -> None:
    """A path or a suite; a tar of a root is taken, and what it came from is told."""
    assert proofbox("template", "import", "--name", "t").returncode == 2
    with tarfile.open(tmp_path / "root.tar", "w") as made:
        made.add(context, arcname=".")
    done = proofbox("template", "import", str(tmp_path / "root.tar"), "--name", "t")
    assert done.returncode == 0, done.stderr
    assert b"source: " in done.stdout
    assert b"t  sha256:" in proofbox("template", "show", "t").stdout
