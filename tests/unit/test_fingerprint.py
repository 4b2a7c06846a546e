"""Fingerprints as values: parts, digests, differences that name what differs, and lines from a guest that may lie."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox.errors import InvalidInput, ProtocolViolation, UncleanStart
from proofbox.model.fingerprint import NAMED, PARTS, PartName, difference, fingerprint_of
from proofbox.model.limits import Limits
from proofbox.model.spec import SandboxSpec, Volume
from proofbox.sandbox.starts import KINDS, Starts
from proofbox.wire.fingerprint import decode_lines, encode_lines
from proofbox.wire.frames import WireError

LINES = st.dictionaries(st.sampled_from(PARTS), st.lists(st.text(max_size=30).filter(str.isprintable), max_size=5))
SPEC = SandboxSpec(id="a", template="sha256:1", limits=Limits(disk=1 << 20))


def told(lines: dict[PartName, list[str]]) -> bytes:
    """As a guest tells them."""
    return encode_lines(lines)


@given(LINES, st.booleans())
def test_the_order_of_lines_does_not_matter(lines: dict[PartName, list[str]], full: bool) -> None:
    """Directories list their files in whatever order; the value is the same."""
    backwards = {name: list(reversed(held)) for name, held in lines.items()}
    mine, its = fingerprint_of(lines, full=full), fingerprint_of(backwards, full=full)
    assert mine == its
    assert mine.digest == its.digest
    assert difference(mine, its) == ()


@given(LINES, st.sampled_from(PARTS), st.text(min_size=1, max_size=20).filter(str.isprintable))
def test_one_line_more_is_named(lines: dict[PartName, list[str]], part: PartName, line: str) -> None:
    """The difference has that line and nothing else, on the right side, also where others are equal to it."""
    more = {**lines, part: [*lines.get(part, []), line]}
    mine, its = fingerprint_of(lines, full=True), fingerprint_of(more, full=True)
    assert difference(mine, its) == (f"{part}: + {line}",)
    assert difference(its, mine) == (f"{part}: - {line}",)
    assert mine.digest != its.digest


def test_what_a_difference_names_is_bounded() -> None:
    """A sandbox with a million files more must not make a message of a million lines."""
    many = fingerprint_of({"files": [str(number) for number in range(1000)]}, full=True)
    named = difference(fingerprint_of({}, full=True), many)
    assert len(named) == NAMED + 1
    assert named[-1] == f"files: and {1000 - NAMED} lines more"


def test_two_forms_cannot_be_compared() -> None:
    """The cheap form does not tell what the full one tells, and that is no difference between two sandboxes."""
    with pytest.raises(InvalidInput, match="full"):
        difference(fingerprint_of({}, full=True), fingerprint_of({}, full=False))


@given(LINES)
def test_lines_survive_the_round_trip(lines: dict[PartName, list[str]]) -> None:
    """What the guest's side encodes is what this side decodes."""
    assert decode_lines(told(lines)) == {name: lines.get(name, []) for name in PARTS}


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_lines_or_a_wire_error(raw: bytes) -> None:
    """A guest that lies ends its own sandbox, and raises nothing else here."""
    try:
        decode_lines(raw)
    except WireError:
        return


def test_a_start_like_the_others_passes() -> None:
    """The first one tells what is expected; the next ones are compared with it."""
    starts = Starts()
    for _ in range(3):
        starts.check(SPEC, told({"files": ["writable at / blocks 0 inodes 9"], "mounts": ["/ rw overlay"]}))
    assert (starts.checked, starts.unclean) == (3, 0)


def test_a_start_unlike_the_others_is_refused_and_counted() -> None:
    """The error names the part and both lines, and what was expected stays what it was."""
    starts = Starts()
    starts.check(SPEC, told({"files": ["inodes 9"]}))
    with pytest.raises(UncleanStart, match="inodes 10") as caught:
        starts.check(SPEC, told({"files": ["inodes 10"]}))
    assert caught.value.differences == ("files: - inodes 9", "files: + inodes 10")
    assert (caught.value.code, caught.value.again) == ("unclean_start", "new sandbox")
    starts.check(SPEC, told({"files": ["inodes 9"]}))
    assert (starts.checked, starts.unclean) == (3, 1)


@pytest.mark.parametrize(
    ("part", "line"),
    [
        ("processes", "(left-behind) "),
        ("sockets", "TCP: inuse 1"),
        ("timers", "(left-behind) timers 1"),
        ("ipc", "System V message queues 1"),
        ("ipc", "message queue evil"),
    ],
)
def test_even_the_first_start_may_not_have(part: PartName, line: str) -> None:
    """What no sandbox starts with is not learnt from a first one that has it."""
    starts = Starts()
    with pytest.raises(UncleanStart, match=part):
        starts.check(SPEC, told({part: [line]}))
    assert starts.unclean == 1


@pytest.mark.parametrize(
    "mounts",
    [[], ["/data rw,nosuid ext4"], ["/data ro,nosuid ext4", "/data/below rw,nosuid tmpfs"]],
    ids=["not mounted", "writable", "writable below"],
)
def test_a_volume_that_is_not_read_only_is_refused(mounts: list[str]) -> None:
    """It is looked at after it was mounted, with all that is mounted below it."""
    spec = SandboxSpec(id="a", template="t", limits=Limits(), volumes=(Volume("/srv", "/data"),))
    with pytest.raises(UncleanStart, match="volume /data is not mounted read-only"):
        Starts().check(spec, told({"mounts": mounts}))
    Starts().check(spec, told({"mounts": ["/data ro,nosuid ext4", "/data/below ro tmpfs", "/database rw tmpfs"]}))


def test_what_is_mounted_below_a_volume_by_now_is_no_difference() -> None:
    """The volume is the caller's: another read-only mount in it does not make the template's start another one."""
    spec = SandboxSpec(id="a", template="t", limits=Limits(), volumes=(Volume("/srv", "/data"),))
    starts = Starts()
    starts.check(spec, told({"mounts": ["/data ro ext4"]}))
    starts.check(spec, told({"mounts": ["/data ro ext4", "/data/below ro tmpfs"]}))
    with pytest.raises(UncleanStart):
        starts.check(spec, told({"mounts": ["/data ro ext4", "/data/below ro tmpfs", "/else ro tmpfs"]}))


def test_another_kind_of_sandbox_has_another_start() -> None:
    """Limits and host names show inside; only sandboxes that were asked for alike are compared."""
    starts = Starts()
    starts.check(SPEC, told({"environment": ["host name a"]}))
    starts.check(SandboxSpec(id="b", template="t", limits=SPEC.limits, hostname="b"), told({"environment": ["b"]}))
    starts.check(msgspec.structs.replace(SPEC, machine_id="1", boot_id="2"), told({"mounts": ["/etc/machine-id ro"]}))
    starts.check(SPEC, told({"environment": ["c"]}), origin=(origin := object()))
    with pytest.raises(UncleanStart):
        starts.check(SPEC, told({"environment": ["d"]}), origin=origin)


def test_kinds_are_forgotten_in_time() -> None:
    """A process that makes ever new templates does not remember all of them."""
    starts = Starts()
    for number in range(KINDS + 5):
        starts.check(SandboxSpec(id="a", template=str(number), limits=Limits()), told({"files": [str(number)]}))
    assert len(starts._cheap) == KINDS


def test_a_guest_that_tells_no_lines_is_refused() -> None:
    """Bytes that are none end the sandbox, as any other breach of the protocol."""
    starts = Starts()
    with pytest.raises(ProtocolViolation):
        starts.check(SPEC, b"\xff\xff")
    assert starts.unclean == 1


def test_the_digest_of_content_is_sha_256(tmp_path: Path) -> None:
    """The guest's own code, against the one that everybody has, for lengths around the edges of its blocks."""
    guest = Path(__file__).parents[2] / "guest"
    source = tmp_path / "digest.c"
    source.write_text(
        '#include "sha256_test.h"\n#include <stdio.h>\n#include <stdlib.h>\n'
        "int main(int n, char **w) { static u8 d[4096]; u8 o[32]; struct sha256 s; size_t l = (size_t)atoi(w[n - 1]);\n"
        "for (size_t i = 0; i < l; i++) d[i] = (u8)(i * 7);\n"
        "sha256_begin(&s); sha256_add(&s, d, l / 3); sha256_add(&s, d + l / 3, l - l / 3); sha256_end(&s, o);\n"
        'for (int i = 0; i < 32; i++) printf("%02x", o[i]); return 0; }\n'
    )
    (tmp_path / "sha256_test.h").write_text('#include "fingerprint.h"\n')
    words = [os.environ.get("CC", "cc"), "-D_GNU_SOURCE", f"-I{guest}", str(source), str(guest / "sha256.c"), "-o"]
    subprocess.run([*words, str(tmp_path / "digest")], check=True)
    assert (tmp_path / "digest").stat().st_mode & stat.S_IXUSR
    for length in (0, 1, 55, 56, 63, 64, 65, 119, 120, 128, 1000, 4096):
        data = bytes(number * 7 % 256 for number in range(length))
        told = subprocess.run([tmp_path / "digest", str(length)], check=True, capture_output=True, text=True).stdout
        assert told == hashlib.sha256(data).hexdigest(), length
