"""Ranges of ids that no two sandboxes of a host have at a time, whatever process made them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from proofbox.errors import CreateFailed
from proofbox.host import idranges
from proofbox.host.idmap import HIGHEST, LOWEST, RANGE
from proofbox.host.idranges import Ranges


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """With the locks."""
    path = tmp_path / "ids"
    path.touch()
    return path


def test_no_two_have_one(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one process, or of two; what is given back can be had again."""
    monkeypatch.setattr(idranges, "SLOTS", 8)
    one, other = Ranges(file), Ranges(file)
    taken = [each.take(f"{number}") for number in range(4) for each in (one, other)]
    assert sorted(taken) == [LOWEST + slot * RANGE for slot in range(8)]
    for each in (one, other):
        with pytest.raises(CreateFailed, match="all 8 ranges of 65536 ids are taken"):
            each.take("more")
    one.give(taken[0], "0")
    assert other.take("more") == taken[0]
    one.give(taken[0], "0")  # once more, when another one has it
    with pytest.raises(CreateFailed):
        one.take("more")
    other.close()
    assert one.take("more") in taken
    one.close()


def test_those_of_a_killed_process_are_free(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel lets go of them."""
    monkeypatch.setattr(idranges, "SLOTS", 1)
    code = "import sys; from pathlib import Path; from proofbox.host import idranges; idranges.SLOTS = 1\n"
    code += "idranges.Ranges(Path(sys.argv[1])).take('x') and print(flush=True); sys.stdin.read()"
    ranges = Ranges(file)
    with subprocess.Popen([sys.executable, "-c", code, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(CreateFailed):
            ranges.take("mine")
        process.kill()
    assert ranges.take("mine") == LOWEST
    ranges.close()


def test_without_a_file_chance_keeps_them_apart() -> None:
    """Within one process they are; the whole room is used."""
    ranges = Ranges(None)
    found = [ranges.take(f"{number}") for number in range(200)]
    assert len(set(found)) == 200
    assert all(LOWEST <= base <= HIGHEST and (base - LOWEST) % RANGE == 0 for base in found)
    assert max(found) - min(found) > (HIGHEST - LOWEST) // 2
    ranges.close()
