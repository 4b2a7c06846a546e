"""Bases that are images of a registry: which one a name means, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.build.conftest import Builds, text
from tests.templates.layouts import Layout, member
from tests.templates.registries import Registry

from proofbox.build.builder import name_of_image
from proofbox.templates.names import NAME
from proofbox.templates.registry import look_up

pytestmark = pytest.mark.anyio


def pushed(served: Registry, top: Path, name: str) -> str:
    """An image that holds its own name, in that registry; how it is called there."""
    layout = Layout(top)
    served.push(layout.done(layout.image([[member("name", name.encode())]])), name)
    return f"{served.address}/{name}"


async def test_tags_that_differ_in_capitals_are_two_images(copies: Builds, served: Registry, tmp_path: Path) -> None:
    """One that was pulled before is not taken for the other."""
    for number, name in enumerate(("app:RC1", "app:rc1")):
        image = pushed(served, tmp_path / str(number), name)
        made = await copies(f"FROM {image}\nENV A=1")
        assert (text(made, "name"), copies.pulled) == (name, [image])
        assert (await copies(f"FROM {image}\nENV A=1")).digest == made.digest
        assert copies.pulled == []


async def test_a_base_is_as_mutable_as_its_name(copies: Builds, served: Registry, tmp_path: Path) -> None:
    """One image, called by a tag and by its digest: only what was built on the tag can be another thing tomorrow."""
    image = pushed(served, tmp_path / "image", "fixed:1")
    fixed = f"{image.removesuffix(':1')}@{look_up(image).index}"
    by_tag = (await copies(f"FROM {image}\nENV A=1")).facts
    by_digest = (await copies(f"FROM {fixed}\nENV A=1")).facts
    again = (await copies(f"FROM {image}\nENV A=1")).facts
    assert by_tag["mutable"] == again["mutable"] == f"{image}: a tag, which may stand for another image later"
    assert "mutable" not in by_digest


def test_every_image_has_a_name_in_the_store() -> None:
    """A usual one by its parts; one that is too long for a name too."""
    assert name_of_image("python:3.12") == "python/3.12"
    assert name_of_image("localhost:5000/x") == "localhost-5000/x/latest"
    long = [name_of_image(f"registry/{'x' * 120}:{tag}") for tag in ("1", "2")]
    assert all(map(NAME.fullmatch, long))
    assert long[0] != long[1]
