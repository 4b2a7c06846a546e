"""An image into the store, beside what else unpacks one; and a build in which every step is kept."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path

from bench.measure import Row, interleave, median, with_ratios
from proofbox.build.builder import Wanted, build
from proofbox.build.dockerfile import parse
from proofbox.build.recipe import Recipe
from proofbox.kit.tree import remove_tree
from proofbox.templates.image import architecture
from proofbox.templates.images import import_path
from proofbox.templates.store import Store

FILES = 5000
SIZE = 8192
STEPS = 10


def layer(files: int) -> bytes:
    """A packed layer of so many files of text, in directories of 50."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as made:
        for number in range(files):
            info = tarfile.TarInfo(f"lib/{number // 50}/{number}.py")
            info.size, info.mode = SIZE, 0o644
            made.addfile(info, io.BytesIO((f"{number:08}" * (SIZE // 8)).encode()))
    return buffer.getvalue()


def layout(top: Path, packed: bytes) -> Path:
    """An OCI image layout of that one layer."""
    (top / "blobs/sha256").mkdir(parents=True)

    def blob(data: bytes, kind: str) -> dict[str, object]:
        name = hashlib.sha256(data).hexdigest()
        (top / "blobs/sha256" / name).write_bytes(data)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{name}", "size": len(data)}

    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
        assert archive.fileobj is not None
        archive.fileobj.seek(0)
        diff = hashlib.sha256(archive.fileobj.read()).hexdigest()
    rootfs = {"type": "layers", "diff_ids": [f"sha256:{diff}"]}
    config = {"architecture": architecture()[0], "os": "linux", "rootfs": rootfs}
    manifest = {
        "schemaVersion": 2,
        "config": blob(json.dumps(config).encode(), "config.v1+json"),
        "layers": [blob(packed, "layer.v1.tar+gzip")],
    }
    index = blob(json.dumps(manifest).encode(), "manifest.v1+json")
    index["annotations"] = {"org.opencontainers.image.ref.name": "latest"}
    (top / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [index]}))
    (top / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return top


def unpacking(top: Path, rounds: int) -> list[Row]:
    """A new place each time. tar checks nothing, hashes nothing and syncs nothing: it is the floor."""
    image = layout(top / "image", packed := layer(FILES))
    (top / "layer.tgz").write_bytes(packed)
    target = top / "target"

    def ours() -> None:
        import_path(Store(target), image, "image")

    def tar() -> None:
        target.mkdir()
        subprocess.run(["tar", "-xzf", str(top / "layer.tgz"), "-C", str(target)], check=True)

    def umoci() -> None:
        words = ["umoci", "unpack", "--image", f"{image}:latest", str(target)]
        subprocess.run([*words, *([] if os.geteuid() == 0 else ["--rootless"])], check=True, capture_output=True)

    contenders = {"proofbox": ours, "tar": tar} | ({"umoci unpack": umoci} if shutil.which("umoci") else {})
    took: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, call in contenders.items():
            remove_tree(target)
            took[name] += interleave({name: call}, 1)[name]
    remove_tree(target)
    what = f"image of {FILES:,} files, {FILES * SIZE >> 20} MB"
    rows = [Row("template", what, name, median(values), "ms") for name, values in took.items()]
    return with_ratios(rows)


async def kept(top: Path, rounds: int) -> list[Row]:
    """A build of files copied and directories made, again and again with nothing new; no sandbox is made for it."""
    os.environ["PROOFBOX_HOME"] = str(top / "home")
    context = top / "context"
    context.mkdir()
    for number in range(STEPS):
        (context / str(number)).write_text(str(number) * 1000)
    text = "FROM scratch\n" + "".join(f"ENV N={n}\nCOPY {n} /d{n}/\n" for n in range(STEPS))
    took = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        recipe: Recipe = parse(text)
        await build(recipe, Wanted(context=context), "bench")
        took.append((time.perf_counter() - start) * 1e3)
    remove_tree(top / "home")
    return [
        Row("template", f"build of {STEPS} steps, all kept", "proofbox", median(took[1:]), "ms"),
        Row("template", f"build of {STEPS} steps, the first time", "proofbox", took[0], "ms"),
    ]


async def measure(quick: bool) -> list[Row]:
    """Rounds in turn, so that a noisy minute hits all alike."""
    before = os.environ.get("PROOFBOX_HOME")
    with tempfile.TemporaryDirectory(prefix="proofbox-bench-") as top:
        try:
            return [*unpacking(Path(top), 2 if quick else 7), *await kept(Path(top), 5 if quick else 50)]
        finally:
            os.environ.pop("PROOFBOX_HOME")
            if before is not None:
                os.environ["PROOFBOX_HOME"] = before
