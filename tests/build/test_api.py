"""The way in from Python."""

from __future__ import annotations

from pathlib import Path

import pytest

import proofbox
from proofbox import sync
from proofbox.build.recipe import Copy, Env, Recipe, Stage
from proofbox.errors import InvalidInput


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is built into this user's store."""
    monkeypatch.setenv("PROOFBOX_HOME", str(tmp_path / "home"))


def _recipe_file(directory: Path) -> Path:
    (directory / "data").write_text("from the context")
    file = directory / "recipe.toml"
    file.write_text('base = "scratch"\nsteps = [{copy = ["data"], to = "/data"}, {env = {A = "1"}}]\n')
    return file


async def test_a_file_and_a_recipe_that_say_the_same_are_one_template(tmp_path: Path) -> None:
    """The file's own directory is the context where nothing else is said."""
    of_file = await proofbox.build_template(_recipe_file(tmp_path), "one")
    steps = (Copy(sources=("data",), to="/data"), Env(values=(("A", "1"),)))
    of_recipe = await proofbox.build_template(Recipe(stages=(Stage(base="scratch", steps=steps),)), context=tmp_path)
    assert (of_file.name, of_file.env["A"]) == ("one", "1")
    assert of_recipe.digest == of_file.digest


def test_without_a_loop_it_is_the_same(tmp_path: Path) -> None:
    """What happens is told there too."""
    heard: list[object] = []
    made = sync.build_template(str(_recipe_file(tmp_path)), "two", tell=heard.append)
    assert made.name == "two"
    assert heard


async def test_what_a_file_cannot_be_is_told(tmp_path: Path) -> None:
    """No file, a target of a recipe, settings beside a recipe that has its own."""
    with pytest.raises(InvalidInput, match="nothing-here"):
        await proofbox.build_template(tmp_path / "nothing-here")
    with pytest.raises(InvalidInput, match="no target 'x'"):
        await proofbox.build_template(_recipe_file(tmp_path), target="x")
    with pytest.raises(InvalidInput, match="recipe's own"):
        await proofbox.build_template(Recipe(stages=(Stage(base="scratch"),)), network="host")
