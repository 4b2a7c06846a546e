"""What a command prints arrives byte for byte, on the right stream, or is said to be cut."""

from __future__ import annotations

import json

import pytest

from proofbox.model.limits import Limits
from proofbox.model.outcome import Exited, HitLimit
from proofbox.sandbox.api import Sandbox
from proofbox.testing.needs import OpenBox, alive, check


@check()
async def test_stdout_and_stderr_are_separate(box: Sandbox) -> None:
    """The two streams never mix, and the exit code is a third thing."""
    result = await box.run("printf out; printf err >&2; exit 7")
    assert (result.stdout, result.stderr, result.outcome) == ("out", "err", Exited(7))


@check()
async def test_merged_output_keeps_its_order(box: Sandbox) -> None:
    """With merge, stderr goes down the stdout pipe in the order of the writes."""
    result = await box.run("printf a; printf b >&2; printf c; printf d >&2", merge=True)
    assert (result.stdout, result.stderr) == ("abcd", "")


@check()
async def test_undecodable_bytes_are_kept_raw_and_shown_with_a_replacement(box: Sandbox) -> None:
    """A lone 0xe2, a NUL and 0xff lose neither the result nor a byte."""
    result = await box.run(r"printf 'a\342b\000c\377'")
    assert result.stdout_bytes == b"a\xe2b\x00c\xff"
    assert result.stdout == "a\ufffdb\x00c\ufffd"


@check()
async def test_control_characters_arrive_as_they_are(box: Sandbox) -> None:
    """Carriage returns and escape codes are stored, not applied."""
    result = await box.run(r"printf 'a 1%%\rb 2%%\r\033[31mred\033[0m\n'")
    assert result.stdout_bytes == b"a 1%\rb 2%\r\x1b[31mred\x1b[0m\n"


@check()
async def test_text_that_looks_like_a_result_is_only_text(box: Sandbox) -> None:
    """Nothing that a program prints is ever interpreted."""
    text = '{"process_status": "completed", "exit_code": 0, "stdout": "4"}'
    result = await box.run(["sh", "-c", 'printf %s "$1"; exit 3', "sh", text])
    assert (result.stdout, result.outcome) == (text, Exited(3))


@pytest.mark.parametrize("count", [9_999, 10_000, 10_001, 16_384])
@check()
async def test_output_over_what_is_kept_says_so(box: Sandbox, count: int) -> None:
    """The head is kept, the total is exact, and only output that was cut is called truncated."""
    result = await box.run(f"printf start; head -c {count - 5} /dev/zero | tr '\\0' x", keep=10_000)
    assert result.stdout_total == count
    assert result.stdout_bytes == (b"start" + b"x" * (count - 5))[:10_000]
    assert result.truncated == (count > 10_000)
    assert result.ok


@check()
async def test_stderr_over_what_is_kept_says_so_too(box: Sandbox) -> None:
    """What is kept counts for each stream by itself."""
    result = await box.run("printf short; head -c 10001 /dev/zero >&2", keep=10_000)
    assert (result.stdout, result.stderr_total, len(result.stderr_bytes)) == ("short", 10_001, 10_000)
    assert result.truncated


@check()
async def test_json_of_megabytes_arrives_whole(box: Sandbox) -> None:
    """A million numbers on stdout parse as the list that was printed."""
    result = await box.run("printf '['; seq -s, 0 999999; printf ']'")
    assert not result.truncated
    assert json.loads(result.stdout) == list(range(10**6))


@check()
async def test_the_last_line_of_long_output_is_never_lost(box: Sandbox) -> None:
    """The end of the stream is proven, five times in a row."""
    for _ in range(5):
        result = await box.run("seq 1 200000")
        assert result.stdout.endswith("\n199999\n200000\n")


@check()
async def test_a_gigabyte_of_output_is_counted_not_kept(box: Sandbox) -> None:
    """A flood costs the host no memory and its size is known to the byte."""
    result = await box.run(f"head -c {1 << 30} /dev/zero", keep=1000)
    assert (result.stdout_total, len(result.stdout_bytes), result.outcome) == (1 << 30, 1000, Exited(0))


@check()
async def test_one_flooding_command_does_not_starve_another(box: Sandbox) -> None:
    """Beside a command whose output nobody reads, another one runs as ever."""
    flood = await box.start("yes")
    try:
        result = await box.run("echo through", timeout=20)
    finally:
        await flood.kill()
    assert result.stdout == "through\n"


@check(enforces=("output",))
async def test_the_output_limit_ends_the_command(open_box: OpenBox, marker: str) -> None:
    """Past the limit on output the whole tree of the command is ended, and the limit is named."""
    async with open_box(limits=Limits(output=100_000)) as box:
        result = await box.run(f"setsid sleep {marker} & yes", timeout=30)
        assert isinstance(result.outcome, HitLimit)
        assert (result.outcome.kind, result.outcome.limit) == ("output", 100_000)
        assert result.outcome.confirmed
        assert await alive(box, marker) == []
        assert (await box.run("echo on")).stdout == "on\n"
