"""A kernel is found by its files alone, as its package brings them, installed or only unpacked."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from proofbox.errors import Refused
from proofbox.runtimes.microvm.initramfs import make_initramfs
from proofbox.runtimes.microvm.kernel import NEEDED, Kernel, find_kernel, module_bytes, module_files


def _module(*needs: str) -> bytes:
    return b"\x7fELF\0license=GPL\0depends=" + ",".join(needs).encode() + b"\0vermagic=x\0"


def _tree(root: Path, version: str, lib: str) -> Path:
    """What a package of a kernel with three modules holds, one of them compressed."""
    modules = root / lib / "modules" / version
    (modules / "kernel/drivers").mkdir(parents=True)
    (modules / "modules.builtin").write_text("kernel/drivers/first-one.ko\n")
    (modules / "kernel/drivers/virtio_x.ko").write_bytes(_module("virtio_ring", "first-one"))
    (modules / "kernel/drivers/virtio_ring.ko.xz").write_bytes(lzma.compress(_module()))
    (modules / "kernel/drivers/other.ko").write_bytes(_module("missing"))
    (root / "boot").mkdir(exist_ok=True)
    image = root / "boot" / f"vmlinuz-{version}"
    image.touch()
    return image


@pytest.fixture(autouse=True)
def _nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROOFBOX_KERNEL", raising=False)
    monkeypatch.delenv("PROOFBOX_KERNEL_MODULES", raising=False)


def test_the_newest_kernel_is_taken(tmp_path: Path) -> None:
    """By the numbers in its version, not by its letters."""
    _tree(tmp_path, "6.1.0-9-cloud-amd64", "lib")
    newest = _tree(tmp_path, "6.1.0-57-cloud-amd64", "lib")
    found = find_kernel(tmp_path)
    assert (found.image, found.number) == (newest, (6, 1))


@pytest.mark.parametrize("lib", ["lib", "usr/lib"])
def test_a_package_that_was_only_unpacked_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lib: str) -> None:
    """Modules come after what they need, without a list that depmod makes; what is built in, or compressed, is seen."""
    monkeypatch.setenv("PROOFBOX_KERNEL", str(_tree(tmp_path, "6.12", lib)))
    kernel = find_kernel()
    files = module_files(kernel, ["virtio_x", "virtio_ring", "first_one"])
    assert [file.name for file in files] == ["virtio_ring.ko.xz", "virtio_x.ko"]
    assert module_bytes(files[0]) == _module()


def test_what_is_missing_is_named_with_what_brings_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel, one without modules, and one that lacks a driver."""
    with pytest.raises(Refused, match="apt install linux-image-cloud-amd64"):
        find_kernel(tmp_path)
    image = _tree(tmp_path, "6.12-cloud-amd64", "lib")
    with pytest.raises(Refused, match="has no module missing"):
        module_files(find_kernel(tmp_path), ["other"])
    monkeypatch.setenv("PROOFBOX_KERNEL", str(image))
    monkeypatch.setenv("PROOFBOX_KERNEL_MODULES", str(tmp_path / "elsewhere"))
    with pytest.raises(Refused, match="PROOFBOX_KERNEL_MODULES"):
        find_kernel()
    assert Kernel(image, "strange", tmp_path).number == ()


def test_other_modules_make_another_first_file_system(tmp_path: Path) -> None:
    """Who names others, for the first ones were wrong, gets those."""
    image = _tree(tmp_path, "6.12", "lib")
    made = []
    for name in ("modules-before", "modules-after"):
        modules = tmp_path / name
        (modules / "kernel").mkdir(parents=True)
        for each in (*NEEDED, "virtio_blk"):
            (modules / f"kernel/{each}.ko").write_bytes(_module() + name.encode())
        made.append(make_initramfs(Kernel(image, "6.12", modules), tmp_path / "made"))
    assert [b"modules-before" in path.read_bytes() for path in made] == [True, False]
    assert make_initramfs(Kernel(image, "6.12", tmp_path / "modules-after"), tmp_path / "made") == made[1]
