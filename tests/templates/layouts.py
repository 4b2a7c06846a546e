"""Hand-made images for the tests: OCI layouts and archives of ``docker save``, good ones and others."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from proofbox.templates.image import architecture

Member = tuple[tarfile.TarInfo, bytes]
OCI = "application/vnd.oci.image."


def member(
    name: str,
    content: bytes = b"",
    *,
    kind: bytes = tarfile.REGTYPE,
    target: str = "",
    mode: int = 0o644,
    owner: int = 0,
    xattrs: dict[str, str] | None = None,
) -> Member:
    """One tar entry."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.size, info.uid, info.gid = kind, target, mode, len(content), owner, owner
    info.mtime = 1_000_000_000
    info.pax_headers = {f"SCHILY.xattr.{key}": value for key, value in (xattrs or {}).items()}
    return info, content


def folder(name: str, mode: int = 0o755, **more: Any) -> Member:
    """One directory."""
    return member(name, kind=tarfile.DIRTYPE, mode=mode, **more)


def tar(*members: Member) -> bytes:
    """A tar of them in that order."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as made:
        for info, content in members:
            made.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def digest(data: bytes) -> str:
    """As images write it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def zstd(data: bytes) -> bytes:
    """Packed by the program."""
    return subprocess.run(["zstd", "-qc"], input=data, capture_output=True, check=True).stdout


PACKINGS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "plain": ("layer.v1.tar", lambda data: data),
    "gzip": ("layer.v1.tar+gzip", lambda data: gzip.compress(data, mtime=0)),
    "zstd": ("layer.v1.tar+zstd", zstd),
}


class Layout:
    """An OCI image layout that is being made at ``top``."""

    def __init__(self, top: Path) -> None:
        self.top = top
        (top / "blobs/sha256").mkdir(parents=True)
        (top / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')

    def blob(self, data: bytes, kind: str, **more: Any) -> dict[str, Any]:
        """Keeps it; its descriptor."""
        name = digest(data)
        self.path(name).write_bytes(data)
        return {"mediaType": OCI + kind, "digest": name, "size": len(data), **more}

    def path(self, name: str) -> Path:
        """Where that blob is."""
        return self.top / "blobs/sha256" / name.removeprefix("sha256:")

    def document(self, value: Any, kind: str, **more: Any) -> dict[str, Any]:
        """Keeps it as JSON; its descriptor."""
        return self.blob(json.dumps(value).encode(), kind, **more)

    def image(
        self,
        layers: Sequence[Sequence[Member]],
        config: dict[str, Any] | None = None,
        *,
        packing: str = "gzip",
        machine: str | None = None,
        diff_ids: Sequence[str] | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """One image, the lowest layer first; its descriptor, with the platform only if ``machine`` is given."""
        kind, pack = PACKINGS[packing]
        tars = [tar(*members) for members in layers]
        described = {
            "architecture": machine or architecture()[0],
            "os": "linux",
            "config": config or {},
            "rootfs": {"type": "layers", "diff_ids": list(diff_ids or map(digest, tars))},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": OCI + "manifest.v1+json",
            "config": self.document(described, "config.v1+json"),
            "layers": [self.blob(pack(data), kind) for data in tars],
        }
        platform = {"platform": {"architecture": machine, "os": "linux"}} if machine else {}
        return self.document(manifest, "manifest.v1+json", **platform, **more)

    def done(self, *manifests: dict[str, Any]) -> Path:
        """Writes the index; the layout's directory."""
        (self.top / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": manifests}))
        return self.top


def saved(path: Path, layers: Sequence[Sequence[Member]], config: dict[str, Any], tag: str = "made:1") -> Path:
    """An archive as ``docker save`` wrote it before it wrote layouts; equal layers are links to the first one."""
    tars = [tar(*members) for members in layers]
    described = {
        "architecture": architecture()[0],
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [digest(data) for data in tars]},
    }
    text = json.dumps(described).encode()
    name = digest(text).removeprefix("sha256:") + ".json"
    names = [f"{number:064x}/layer.tar" for number in range(len(tars))]
    members = [member(name, text)]
    for number, data in enumerate(tars):
        first = tars.index(data)
        if first == number:
            members.append(member(names[number], data))
        else:
            members.append(member(names[number], kind=tarfile.SYMTYPE, target=f"../{names[first]}"))
    manifest = [{"Config": name, "RepoTags": [tag], "Layers": names}]
    members.append(member("manifest.json", json.dumps(manifest).encode()))
    path.write_bytes(tar(*members))
    return path
