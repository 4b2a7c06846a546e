"""A template: an immutable file system and environment, named by digest."""

from __future__ import annotations

import msgspec


class Layer(msgspec.Struct, frozen=True):
    """A read-only directory of the host that appears in the sandbox at ``target``, below the writable layer.

    Layers with the same target are stacked, the first one on top. Targets are absolute, "/" is the root; another
    target is an empty directory in the root layers. ``digest`` names what the store keeps; it is empty for a directory
    of the host's own.
    """

    target: str
    source: str
    digest: str = ""


class Template(msgspec.Struct, frozen=True, kw_only=True):
    """What every sandbox of it starts from. ``digest`` is ``sha256:`` and 64 hex digits over all that follows.

    ``layers`` name host paths and are not part of the digest; what they hold is.
    """

    digest: str
    name: str
    layers: tuple[Layer, ...]
    env: dict[str, str]
    cwd: str = "/"
    user: str = "root"
    facts: dict[str, str] = {}
    """For the record: for ``host`` the distribution, its version, how many packages, the digest of their list."""


def mountable(template: Template) -> Template:
    """The same without layers over which the same one lies: an overlay takes a directory once, and those show nothing.

    A step of a build that writes what an earlier one wrote makes such a template.
    """
    known: dict[tuple[str, str], Layer] = {}
    for layer in template.layers:
        known.setdefault((layer.target, layer.source), layer)
    if len(known) == len(template.layers):
        return template
    return msgspec.structs.replace(template, layers=tuple(known.values()))


def targets(template: Template) -> tuple[str, ...]:
    """Where its layers appear, "/" first: by its place here a target is named in a sandbox's writable layer."""
    return tuple(dict.fromkeys(("/", *(layer.target for layer in template.layers))))
