"""Registries of images, through skopeo: what a reference names, and its blobs into a directory. Unpacks nothing."""

from __future__ import annotations

import functools
import hashlib
import ipaddress
import os
import re
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from proofbox.errors import InvalidInput, Refused, StoreFailed
from proofbox.host.home import explained
from proofbox.kit.tool import run_tool
from proofbox.templates.image import DEPTH_MOST, Manifest, manifest_of, pick

RETRIES: Final = 3
"""For failures that skopeo takes for passing ones."""

LOOK_UP_SECONDS: Final = 120.0
COPY_SECONDS: Final = 4 * 3600.0
"""A registry that stands still must not hold who waits for the same image for ever."""

POLICIES: Final = ("/etc/containers/policy.json", "~/.config/containers/policy.json")

_REPOSITORY: Final = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9.:_\[\]/-]{0,500}")
_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Named:
    """What a reference stands for now. ``digest``: of the manifest for this machine; ``index``: of what the reference
    led to first.
    """

    repository: str
    digest: str
    manifest: Manifest
    index: str

    @property
    def reference(self) -> str:
        """One that cannot change."""
        return f"{self.repository}@{self.digest}"


def look_up(reference: str) -> Named:
    """Asks the registry. Raises ``InvalidInput``, ``Refused`` without skopeo, ``StoreFailed`` if it does not answer."""
    repository, tag, wanted = parse(reference)
    asked = f"{repository}@{wanted}" if wanted else f"{repository}:{tag}"
    first = ""
    for _ in range(DEPTH_MOST):
        data = _skopeo(repository, "inspect", "--raw", timeout=LOOK_UP_SECONDS, source=asked)
        seen = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if wanted and seen != wanted:
            raise InvalidInput(f"pull of {reference}: the registry answered with {seen}, not {wanted}")
        first = first or seen
        found = manifest_of(data, reference)
        if isinstance(found, Manifest):
            return Named(repository, seen, found, first)
        wanted = pick(found.manifests, reference).digest
        asked = f"{repository}@{wanted}"
    raise InvalidInput(f"pull of {reference}: more than {DEPTH_MOST} indexes in one another")


def copy(named: Named, target: Path, layers: Collection[str]) -> Path:
    """Copies that image's configuration, and those of its layers that ``layers`` names by their digests, into the new
    directory ``target``; the directory that has them then, each blob by its 64 hex digits.

    Raises as ``look_up``; remove ``target`` then. This host's policy on signatures holds, whatever is left out.
    """
    ask = functools.partial(_skopeo, named.repository, source=named.reference, timeout=COPY_SECONDS)
    blobs = target / "sha256"
    blobs.mkdir(parents=True)
    left_out = {layer.digest for layer in named.manifest.layers} - set(layers)
    if not left_out:
        ask("copy", "--quiet", target=f"dir:{blobs}")
        return blobs
    # Skopeo fetches no blob that lies in a directory of blobs already, so they are made to lie there, empty. What it
    # writes is in the form of OCI images, which has no place for signatures; the configuration as it was is asked for
    # by itself.
    there = [blobs / digest.removeprefix("sha256:") for digest in left_out]
    for blob in there:
        blob.touch()
    options = ("--quiet", "--remove-signatures", "--dest-shared-blob-dir=.")
    ask("copy", *options, target="oci:described", place=target)
    for blob in there:
        blob.unlink()
    config = ask("inspect", "--config", "--raw")
    (blobs / named.manifest.config.digest.removeprefix("sha256:")).write_bytes(config)
    return blobs


def parse(reference: str) -> tuple[str, str, str]:
    """Repository, tag and digest; the tag is ``latest`` where there is neither. Raises ``InvalidInput``."""
    name, _, digest = reference.partition("@")
    path, slash, last = name.rpartition("/")
    last, colon, tag = last.partition(":")
    repository = f"{path}{slash}{last}"
    good = _REPOSITORY.fullmatch(repository) and (not colon or _TAG.fullmatch(tag))
    if not good or ".." in repository or "//" in repository or ("@" in reference and not _DIGEST.fullmatch(digest)):
        raise InvalidInput(f"image reference {reference!r}: it is [REGISTRY/]NAME[:TAG][@sha256:DIGEST]")
    return repository, tag or "latest", digest


def is_loopback(repository: str) -> bool:
    """Whether its registry is on this machine, where there is nobody between it and us."""
    registry, slash, _ = repository.partition("/")
    if not slash:
        return False
    host = registry[1:].partition("]")[0] if registry.startswith("[") else registry.partition(":")[0]
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _skopeo(
    repository: str,
    verb: str,
    *options: str,
    source: str,
    target: str | None = None,
    place: Path | None = None,
    timeout: float,
) -> bytes:
    program = shutil.which("skopeo")
    if program is None:
        raise Refused("pull from a registry", ("the program skopeo is missing: apt install skopeo",))
    words = [program, verb, f"--retry-times={RETRIES}", *options]
    if not any(os.path.exists(os.path.expanduser(policy)) for policy in POLICIES):
        words.insert(1, "--insecure-policy")  # without a file it refuses all; who has one has it obeyed
    if is_loopback(repository):
        words.append("--src-tls-verify=false" if target else "--tls-verify=false")
    words += [f"docker://{source}", *([target] if target else [])]
    # Without it skopeo looks for a user's credentials below /run/containers, which root may have closed to others.
    env = {"XDG_RUNTIME_DIR": f"/run/user/{os.geteuid()}"} | os.environ
    try:
        code, said, complaints = run_tool(words, timeout=timeout, env=env, cwd=place)
    except TimeoutError as late:
        raise StoreFailed(f"pull of {source}: the registry gave no answer within {timeout:.0f} s") from late
    except OSError as error:
        raise StoreFailed(f"pull of {source}: {program}: {error.strerror}") from error
    if code:
        raise StoreFailed(f"pull of {source}: skopeo {verb} failed: {explained(_reason(complaints))}")
    return said


def _reason(said: bytes) -> str:
    """What skopeo says at last, without the form of a log; all that it said where that has another form."""
    text = said.decode("utf-8", "replace").strip()
    fatal = re.findall(r'level=fatal msg="((?:[^"\\]|\\.)*)"', text)
    return (fatal[-1].replace('\\"', '"').replace("\\n", "\n") if fatal else text)[-2000:]
