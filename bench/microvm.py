"""Virtual machines: going on from a saved state, booted, and QEMU by hand with the same kernel and the same init."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from tempfile import TemporaryDirectory

import anyio

import proofbox
from bench.measure import Row, median, with_ratios
from proofbox.model.limits import Limits
from proofbox.model.template import Template
from proofbox.runtime import registry
from proofbox.runtimes.microvm import inside
from proofbox.runtimes.microvm.image import machines
from proofbox.runtimes.microvm.initramfs import make_initramfs
from proofbox.runtimes.microvm.parts import Parts, find, find_parts
from proofbox.runtimes.microvm.runtime import MicrovmRuntime
from proofbox.templates.store import open_store
from proofbox.testing.small import small_template

BOOTING = "microvm-booting"
BY_HAND = "QEMU by hand"


@contextmanager
def by_hand(parts: Parts) -> Iterator[int]:
    """A machine of the same size, booted as its manual says until our init waits; the process id of QEMU."""
    with TemporaryDirectory() as place:
        path = f"{place}/control"
        memory = inside.guest_memory(Limits()) >> 20
        words = [parts.qemu.path, "-M", "microvm,acpi=on", "-accel", parts.accelerator, "-m", f"{memory}M"]
        words += ["-cpu", "host" if parts.accelerator == "kvm" else "max", "-nodefaults", "-no-user-config"]
        words += [
            "-nographic",
            "-no-reboot",
            "-smp",
            str(inside.guest_processors(Limits(), parts.accelerator)),
            "-serial",
            "null",
        ]
        words += ["-kernel", str(parts.kernel.image), "-initrd", str(make_initramfs(parts.kernel, machines()))]
        words += ["-append", inside.command_line(parts.accelerator), "-device", "virtio-serial-device"]
        for number, where in ((1, f"{place}/channel"), (2, path)):
            words += ["-chardev", f"socket,id=c{number},path={where},server=on,wait=off"]
            words += ["-device", f"virtserialport,chardev=c{number},nr={number},name=p{number}"]
        with subprocess.Popen(words, stdin=subprocess.DEVNULL) as qemu:
            try:
                with _connected(f"{place}/channel"), _connected(path) as control:
                    if control.recv(5, socket.MSG_WAITALL)[4:] != b"W":
                        raise RuntimeError("init of a machine by hand did not come to wait")
                    yield qemu.pid
            finally:
                qemu.kill()


def _connected(path: str) -> socket.socket:
    """To a socket that QEMU is about to make."""
    until = time.monotonic() + 10
    while True:
        made = socket.socket(socket.AF_UNIX)
        try:
            made.connect(path)
        except OSError:
            made.close()
            if time.monotonic() > until:
                raise
            time.sleep(0.001)
        else:
            return made


def life_by_hand(parts: Parts) -> None:
    """Booted, and ended."""
    with by_hand(parts):
        pass


async def life(host: proofbox.Host, template: Template) -> float:
    """Milliseconds from the order to the first command's result; the sandbox is ended after it."""
    start = time.perf_counter()
    async with host.open_sandbox(template) as box:
        if not (await box.run(["true"])).ok:
            raise RuntimeError("true failed")
        return (time.perf_counter() - start) * 1e3


async def whole(call: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds of all of it."""
    start = time.perf_counter()
    await call()
    return (time.perf_counter() - start) * 1e3


async def commands(host: proofbox.Host, template: Template, count: int) -> list[float]:
    """Milliseconds of each ``true`` in one live sandbox."""
    async with host.open_sandbox(template) as box:
        await box.run(["true"])
        return [await whole(lambda: box.run(["true"])) for _ in range(count)]


async def memory_fork(host: proofbox.Host, template: Template, count: int) -> float:
    """Milliseconds until so many sandboxes go on where another one is."""
    async with host.open_sandbox(template) as box:
        await box.run(["true"])
        start = time.perf_counter()
        async with box.fork(count, memory=True):
            return (time.perf_counter() - start) * 1e3


async def measure(quick: bool) -> list[Row]:
    """Rounds of each in turn. Where this host has no hardware support all of them are emulated."""
    rounds = 3 if quick else 10
    parts = await find_parts(find())
    registry.register(BOOTING, lambda owner: MicrovmRuntime(owner, name=BOOTING, boots=True))
    saved, booting = await proofbox.Host.local("microvm"), await proofbox.Host.local(BOOTING)
    native = await proofbox.Host.local("native")
    template = small_template(open_store())
    await life(saved, template)
    names = ("proofbox", "proofbox, booting", BY_HAND)
    first: dict[str, list[float]] = {name: [] for name in names[:2]}
    lives: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name, host in (("proofbox", saved), ("proofbox, booting", booting)):
            start = time.perf_counter()
            first[name].append(await life(host, template))
            lives[name].append((time.perf_counter() - start) * 1e3)
        lives[BY_HAND].append(await whole(lambda: anyio.to_thread.run_sync(life_by_hand, parts)))
    ran = {
        "proofbox": await commands(saved, template, 10 * rounds),
        "proofbox, native": await commands(native, template, 10 * rounds),
    }
    forks = {
        f"proofbox, {count}": [await memory_fork(saved, template, count) for _ in range(rounds)] for count in (1, 4)
    }
    found = (
        ("from the order to the first command's result", first, "ms"),
        ("create + true + destroy", lives, "ms"),
        ("a command in a live sandbox", ran, "ms"),
        ("so many forks with memory", forks, "ms"),
    )
    how = "emulated: " if parts.accelerator == "tcg" else ""
    rows: list[Row] = []
    for figure, values, unit in found:
        mine = [Row("microvm", how + figure, who, median(took), unit) for who, took in values.items()]
        rows += with_ratios([replace(row, note="boot and end alone") if row.who == BY_HAND else row for row in mine])
    return rows
