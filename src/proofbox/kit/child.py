"""Waiting for a child process on whatever event loop runs."""

from __future__ import annotations

import os
import subprocess

import anyio


async def exited(process: subprocess.Popen[bytes]) -> int:
    """Waits for it without a thread and without a poll; its status as of wait(2). Safe to repeat, and to cancel."""
    if process.poll() is None:
        try:
            watch = os.pidfd_open(process.pid)
        except ProcessLookupError:  # reaped by another waiter since
            watch = -1
        if watch >= 0:
            try:
                await anyio.wait_readable(watch)
            finally:
                os.close(watch)
    code = process.wait()
    return -code if code < 0 else code << 8


async def end_within(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Waits so long for it to exit by itself, then kills it; it has ended when this returns. Safe to repeat."""
    with anyio.move_on_after(seconds):
        await exited(process)
    if process.poll() is None:
        process.kill()
        await exited(process)
