"""How much memory is free, as the kernel's files say it."""

from __future__ import annotations

from pathlib import Path

import pytest

from proofbox.host.memory import available_memory, free_memory

MIB = 1 << 20


def test_what_is_free_is_less_than_what_there_is() -> None:
    """On this machine, with the groups around this process."""
    assert 0 < free_memory() <= available_memory()


@pytest.mark.parametrize(
    ("limit", "usage", "idle"),
    [
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ],
)
def test_a_group_leaves_what_its_limit_does_and_idle_files_can_go(
    tmp_path: Path, limit: str, usage: str, idle: str
) -> None:
    """The tightest group around counts, of either version; one without a limit says nothing."""
    inner, outer = tmp_path / "outer/inner", tmp_path / "outer"
    inner.mkdir(parents=True)
    (outer / limit).write_text("max\n")
    (inner / limit).write_text(f"{64 * MIB}\n")
    (inner / usage).write_text(f"{48 * MIB}\n")
    (inner / "memory.stat").write_text(f"inactive_anon 5\ninactive_file {MIB}\n{idle} {8 * MIB}\n")
    assert free_memory([inner, outer]) == 24 * MIB
    (inner / usage).write_text(f"{100 * MIB}\n")
    assert free_memory([inner, outer]) == 0
