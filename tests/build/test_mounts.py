"""What one command sees by ``RUN --mount``, and that nothing of it is in the result."""

from __future__ import annotations

import pytest
from tests.build.conftest import Builds, text

from proofbox.build.dockerfile import parse
from proofbox.build.events import StepEnded
from proofbox.build.plan import RunCommand, Start, plan
from proofbox.build.recipe import Mount, Run
from proofbox.errors import InvalidInput

pytestmark = pytest.mark.anyio


def mounts_of(line: str, before: str = "") -> tuple[Mount, ...]:
    made = parse(f"FROM base AS one\nFROM base\n{before}\n{line}")
    action = plan(made, made.stages[-1], Start(), {}).actions[-1]
    assert isinstance(action, RunCommand)
    return action.mounts


def test_mounts_are_understood_as_engines_do() -> None:
    """Their names, what is absolute, variables; a secret that nobody gives is not there."""
    assert mounts_of("RUN --mount=type=cache,target=/c,sharing=locked,id=x,uid=5,gid=6,mode=0700 a") == (
        Mount(target="/c", owner=(5, 6), mode=0o700),
    )
    assert mounts_of("RUN --mount=source=uv.lock,dst=uv.lock a", "WORKDIR /app") == (
        Mount(target="/app/uv.lock", source="uv.lock"),
    )
    assert mounts_of("RUN --mount=from=one,src=/bin/$A,target=/bin/$A,ro a", "ENV A=b") == (
        Mount(target="/bin/b", source="/bin/b", origin="one"),
    )
    assert mounts_of("RUN --mount=type=bind,target=/a --mount=type=tmpfs,target=/t,size=1g a") == (
        Mount(target="/a", source="."),
        Mount(target="/t"),
    )
    assert mounts_of("RUN --mount=type=secret,id=token --mount=type=ssh a") == ()


@pytest.mark.parametrize(
    ("mount", "why"),
    [
        ("type=volume,target=/v", "type volume is not supported"),
        ("type=cache", "needs a target"),
        ("type=cache,target=/c,from=one", "with from"),
        ("type=cache,target=/c,mode=rw", "mode=rw"),
        ("type=secret,id=a,required", "is required"),
        ("type=ssh,required=true", "is required"),
        ("from=$A,target=/t", "no variables"),
        ("from=1,target=/t", "a stage that is above"),
    ],
)
def test_what_is_not_understood_is_an_error_with_its_line(mount: str, why: str) -> None:
    """Also a secret that the command needs."""
    with pytest.raises(InvalidInput, match=f"line 3: .*{why}"):
        parse(f"FROM base AS one\nFROM base\nRUN --mount={mount} a")


def test_a_stage_that_is_mounted_is_needed() -> None:
    """As one that is copied from."""
    made = parse("FROM a AS one\nFROM b AS two\nFROM c\nRUN --mount=from=two,target=/t x")
    assert made.needed(2) == [1, 2]
    run = made.stages[2].steps[0]
    assert isinstance(run, Run)
    assert run.origins() == ("two",)


async def test_a_command_sees_its_mounts_and_nobody_after_it(builds: Builds) -> None:
    """Files and directories of the context and of a stage, over what is there; and what it writes elsewhere stays."""
    builds.add("deps.txt", "a\nb\n")
    builds.add("src/main.py", "print()")
    builds.add("src/secret", "no")
    builds.add(".dockerignore", "src/secret")
    made = await builds(
        "FROM host AS tools\nRUN mkdir /out && echo tool > /out/tool && chmod 755 /out/tool && chown 1:2 /out\n"
        "FROM host\nRUN mkdir -p /app/src /cache && echo old > /app/src/old && echo kept > /cache/kept\nWORKDIR /app\n"
        "RUN --mount=source=deps.txt,target=deps.txt --mount=source=src,target=src "
        "--mount=from=tools,source=/out,target=/out --mount=from=tools,source=/out/tool,target=/usr/bin/tool "
        "--mount=type=cache,target=/cache --mount=type=cache,target=/new/deep,mode=700 "
        "cat deps.txt; ls src /out /cache /new/deep; stat -c '%a %u %g' /new/deep /out; cat /usr/bin/tool; "
        "echo w > src/w; echo w > /cache/w; echo w > /new/deep/w; rm src/main.py; echo made > made; echo m > /new/m\n"
        "RUN ls /app /app/src /cache /new; ls -d /out /new/deep /usr/bin/tool 2>/dev/null | wc -l"
    )
    seen = "a b /cache: /new/deep: /out: tool src: main.py 700 0 0 755 1 2 tool"
    left = "/app: made src /app/src: old /cache: kept /new: m 0"
    assert builds.output.decode().split() == f"{seen} {left}".split()
    assert text(made, "app/made") == "made\n"
    assert text(made, "app/deps.txt") is None


async def test_what_is_mounted_counts_for_what_is_kept(builds: Builds) -> None:
    """A step is made again if what it sees is another thing, and only then."""
    builds.add("lock", "1")
    recipe = "FROM host\nRUN --mount=source=lock,target=/lock --mount=type=cache,target=/c cat /lock > /seen"

    async def kept() -> list[bool]:
        builds.events.clear()
        await builds(recipe)
        return [event.kept for event in builds.events if isinstance(event, StepEnded)]

    assert await kept() == [False]
    assert await kept() == [True]
    builds.add("other", "1")
    assert await kept() == [True]
    builds.add("lock", "2")
    assert await kept() == [False]


@pytest.mark.parametrize(
    ("run", "why"),
    [
        ("--mount=source=lock,target=/l echo x >> /l", "changed /l, which is mounted"),
        ("--mount=source=lock,target=/l rm /l", "changed /l, which is mounted"),
        ("--mount=source=lock,target=/etc a", "/etc is a directory"),
        ("--mount=source=none,target=/l a", "'none' is not in what is copied from"),
        ("--mount=target=/usr a", "/usr is a mount of every sandbox"),
        ("--mount=target=/proc/x a", "/proc/x is a mount of every sandbox"),
        ("--mount=target=/ a", "/ is a mount of every sandbox"),
    ],
)
async def test_what_cannot_be_mounted_is_an_error_with_its_line(builds: Builds, run: str, why: str) -> None:
    """What engines refuse while the command runs is refused when it has run."""
    builds.add("lock", "1")
    with pytest.raises(InvalidInput, match=f"line 2: .*{why}"):
        await builds(f"FROM host\nRUN {run}")
