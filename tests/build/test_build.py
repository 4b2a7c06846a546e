"""Builds whose steps run in real sandboxes: their results, what is kept, and what is left when they fail."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio
import msgspec
import pytest
from tests.build.conftest import Builds, text

from proofbox.build.lock import differences, lock
from proofbox.errors import BuildFailed, InvalidInput
from proofbox.host.idmap import find_ids
from proofbox.model.template import Layer
from proofbox.templates.store import Store

pytestmark = [pytest.mark.anyio, pytest.mark.container]

BUILD = """
import sys, anyio
from pathlib import Path
from proofbox.build.builder import Wanted, build
from proofbox.build.dockerfile import parse
print(anyio.run(build, parse(sys.argv[1]), Wanted(), None).digest)
"""


async def test_a_step_runs_where_the_ones_before_it_left_off(builds: Builds) -> None:
    """Files, variables, directory and shell of the steps before; the result's commands get the same."""
    builds.add("greeting", "hello")
    made = await builds(
        "FROM host\nARG WHO=world\nENV A='b c'\nWORKDIR /work\nCOPY greeting .\n"
        'RUN echo "$(cat greeting) $WHO $A" > out; echo told; echo aside >&2\n'
        "RUN rm greeting; mkdir /made && chmod 711 /made\n"
        'SHELL ["/bin/sh", "-ec"]\nRUN false || true; test "$0" = /bin/sh\n'
        "RUN <<EOT\necho document >> out\nEOT\n"
        'CMD ["run"]',
        "made",
    )
    assert b"told\n" in builds.output
    assert b"aside\n" in builds.output
    assert text(made, "work/out") == "hello world b c\ndocument\n"
    assert text(made, "work/greeting") is None
    assert builds.host is not None
    async with builds.host.open_sandbox("made") as box:
        result = await box.run('cat out; echo "$A"; pwd; ls -A | wc -l; stat -c %a /made; echo ${WHO-none}')
    assert result.stdout == "hello world b c\ndocument\nb c\n/work\n1\n711\nnone\n"
    assert made.facts["cmd"] == '["run"]'


async def test_a_step_that_writes_what_an_earlier_one_wrote_is_no_obstacle(builds: Builds) -> None:
    """Its layer is the same directory once more in the stack: at once, with another one between, after a removal."""
    builds.add("file", "one\n")
    made = await builds(
        "FROM host\nCOPY file /d/file\nRUN sed -i s/x/y/ /d/file\nRUN echo two > /d/file\nCOPY file /d/file\n"
        "RUN rm /d/file\nCOPY file /d/file\nRUN cat /d/file; ls /d"
    )
    assert builds.output == b"one\nfile\n"
    digests = [layer.digest for layer in made.layers if layer.digest]
    assert len(set(digests)) < len(digests)
    assert builds.host is not None
    async with builds.host.open_sandbox(made) as box:
        assert (await box.run("cat /d/file")).stdout == "one\n"


async def test_a_build_of_the_same_runs_nothing(builds: Builds) -> None:
    """Every step is kept, also for another process and another name; a change runs what comes after it."""
    recipe = "FROM host\nRUN echo {} > /a\nRUN cat /a > /b\nRUN true"
    first = await builds(recipe.format(1), "one")
    assert builds.kept == [False] * 3
    host, builds.host = builds.host, None
    again = await builds(recipe.format(1), "two")
    assert (again.digest, builds.kept) == (first.digest, [True] * 3)
    told = await anyio.run_process([sys.executable, "-c", BUILD, recipe.format(1)])
    assert told.stdout.decode().strip() == first.digest
    builds.host = host
    changed = await builds(recipe.format(2))
    assert builds.kept == [False] * 3
    assert text(changed, "b") == "2\n"


async def test_what_is_kept_outlives_a_collection_as_long_as_its_template(builds: Builds, store: Store) -> None:
    """Layers of a named template are kept steps; with its name they go, and the build is made again."""
    recipe = "FROM host\nRUN echo collected > /a\nRUN echo 2 > /b"
    first = await builds(recipe, "collected")
    store.close()
    store.collect()
    assert ((await builds(recipe, "collected")).digest, builds.kept) == (first.digest, [True, True])
    store.close()
    store.remove("collected")
    store.collect()
    assert ((await builds(recipe, "collected")).digest, builds.kept) == (first.digest, [False, False])


async def test_a_step_that_fails_says_where_and_leaves_the_name_alone(builds: Builds, store: Store) -> None:
    """Line, exit status and last output; the steps before it are kept, and the next build goes on from there."""
    old = await builds("FROM host\nRUN echo old > /a", "failing")
    with pytest.raises(BuildFailed, match=r"(?s)line 3: `RUN echo why; exit 7` ended with exit status 7.*why"):
        await builds("FROM host\nRUN echo new > /a\nRUN echo why; exit 7\nRUN echo never", "failing")
    assert store.resolve("failing").digest == old.digest
    assert b"never" not in builds.output
    await builds("FROM host\nRUN echo new > /a\nRUN true", "failing")
    assert builds.kept == [True, False]
    with pytest.raises(BuildFailed, match=r"did not start|status 127"):  # without other users root is not looked up
        await builds('FROM scratch\nRUN ["/none"]')
    assert not list((store.home / "making").iterdir())


async def test_a_cancelled_build_leaves_nothing_that_runs(builds: Builds, store: Store) -> None:
    """The step is ended with its sandbox; the name does not exist."""
    recipe = "FROM host\nRUN echo before > /a\nRUN echo up; sleep 600"
    async with anyio.create_task_group() as group:
        group.start_soon(builds, recipe, "cancelled")
        with anyio.fail_after(60):
            while b"up" not in builds.output:  # noqa: ASYNC110 - the build tells, it sets no event
                await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    assert builds.host is not None
    assert not builds.host._factory.lives
    assert "cancelled" not in [template.name for template in store.list()]
    assert not list((store.home / "making").iterdir())


async def test_two_builds_of_one_step_at_once_make_it_once(builds: Builds) -> None:
    """The second one waits for the first one's layer and takes it."""
    other = Builds(builds.store, builds.context, builds.host)
    recipe = "FROM host\nRUN sleep 0.3; cat /proc/sys/kernel/random/uuid > /once"
    made = []

    async def make(by: Builds) -> None:
        made.append(await by(recipe))

    async with anyio.create_task_group() as group:
        group.start_soon(make, builds)
        group.start_soon(make, other)
    assert made[0].digest == made[1].digest
    assert sorted(builds.kept + other.kept) == [False, True]


async def test_a_fresh_build_runs_all_and_tells_what_differs(builds: Builds) -> None:
    """What is the same every time is one template; what is not is named by its path."""
    same = "FROM host\nRUN echo same > /a"
    first = await builds(same)
    again = await builds(same, fresh=True)
    assert builds.kept == [False]
    assert differences(first, again) == []
    other = "FROM host\nRUN echo 1 > /a && cat /proc/sys/kernel/random/uuid > /id"
    found = differences(await builds(other, fresh=True), await builds(other, fresh=True))
    assert [line.partition(": ")[2] for line in found] == ["/id"]


async def test_steps_are_confined_to_what_the_build_was_given(builds: Builds) -> None:
    """No network of the host, none of its files; a variable of the environment that starts the build is not there."""
    os.environ["PROOFBOX_TEST_CANARY"] = "canary"
    try:
        await builds("FROM host\nRUN ls /sys/class/net 2>/dev/null; cat /proc/net/dev | tail -n +3; env")
    finally:
        del os.environ["PROOFBOX_TEST_CANARY"]
    assert b"canary" not in builds.output
    assert b"eth0" not in builds.output


async def test_what_came_through_the_network_is_said(builds: Builds) -> None:
    """A step that could fetch something makes the template a mutable one, and so all that is built on it."""
    made = await builds("FROM host\nRUN true", "base", network="host")
    assert "network host" in made.facts["mutable"]
    assert "network host" in (await builds("FROM base\nRUN --network=none true")).facts["mutable"]
    assert "mutable" not in (await builds("FROM host\nRUN --network=none true", network="host")).facts


async def test_arguments_and_bases_are_checked_before_anything_runs(builds: Builds) -> None:
    """An unknown argument, a base that nobody has, and a base that is given under another name."""
    with pytest.raises(InvalidInput, match="no ARG X"):
        await builds("FROM host\nRUN true", args={"X": "1"})
    with pytest.raises(InvalidInput, match="line 1: image reference 'NONE!'"):
        await builds("FROM NONE!\nRUN true")
    made = await builds("FROM img:1\nRUN echo 1 > /a", bases={"img:1": "host"})
    assert text(made, "a") == "1\n"


async def test_proxies_are_given_to_commands_and_change_nothing(builds: Builds) -> None:
    """Every build takes them; they are neither in the template nor in what a step is kept by, unless it asks."""
    given = {"http_proxy": "http://one", "NO_PROXY": "x"}
    first = await builds("FROM host\nENV NO_PROXY=own\nRUN echo $http_proxy $NO_PROXY", args=given)
    assert builds.output == b"http://one own\n"
    again = await builds("FROM host\nENV NO_PROXY=own\nRUN echo $http_proxy $NO_PROXY", args={"http_proxy": "two"})
    assert (again.digest, builds.kept) == (first.digest, [True])
    assert "http_proxy" not in first.env
    asked = "FROM host\nARG http_proxy\nRUN echo $http_proxy"
    await builds(asked, args={"http_proxy": "http://one"})
    await builds(asked, args={"http_proxy": "http://two"})
    assert builds.output == b"http://two\n"


async def test_a_lock_says_what_is_installed(builds: Builds) -> None:
    """Packages of the system and of Python with their versions, removed ones not; the layers and the digest of all."""
    status = "Package: a\nStatus: install ok installed\nArchitecture: all\nVersion: 1.0-1\n\n"
    builds.add("status", status + status.replace(" a\n", " b\n").replace("ok installed", "ok config-files"))
    builds.add("site/Some_Thing-2.1.dist-info/METADATA")
    recipe = "FROM scratch\nCOPY status /var/lib/dpkg/\nCOPY site /usr/local/lib/python3/site-packages\n"
    found = lock(await builds(recipe))
    assert (found.dpkg, found.python) == ({"a:all": "1.0-1"}, {"some-thing": "2.1"})
    assert len(found.layers) == 3
    one_copy = lock(await builds("FROM scratch AS a\n" + recipe.partition("\n")[2] + "FROM scratch\nCOPY --from=a / /"))
    assert one_copy.template != found.template
    assert one_copy.tree == found.tree


async def test_a_lock_reads_what_is_closed_to_its_maker(copies: Builds) -> None:
    """Files and directories of mode 0, and of other users where there are any: the sandbox's root sees them all."""
    copies.add("etc/passwd", "root:x:0:0::/:/bin/sh\n" + ("me:x:7:9::/:/bin/sh\n" if find_ids().users else ""))
    copies.add("package/Thing-3.dist-info/METADATA")
    copies.add("secret", "1")
    owner = "me" if find_ids().users else "root"
    recipe = (
        f"FROM scratch\nCOPY etc /etc/\nCOPY --chown={owner} --chmod=000 package /opt/p/\nCOPY --chmod=000 secret /\n"
    )
    one = lock(await copies(recipe))
    assert one.python == {"thing": "3"}
    copies.add("secret", "2")
    other = lock(await copies(recipe))
    assert (other.python, other.tree == one.tree) == (one.python, False), "what only root may read counts"


async def test_a_lock_over_directories_of_the_host_digests_what_is_there(copies: Builds, tmp_path: Path) -> None:
    """They have no digest of their own; what changes in them changes the lock, and what does not, does not."""
    made = await copies("FROM scratch")
    (tmp_path / "top").mkdir()
    over = msgspec.structs.replace(made, layers=(Layer("/", str(tmp_path / "top")), *made.layers))
    (tmp_path / "top/file").write_text("1")
    first, again = lock(over), lock(over)
    (tmp_path / "top/file").write_text("2")
    assert first.layers[0] == f"host:{tmp_path / 'top'}"
    assert (first.tree == again.tree, first.tree == lock(over).tree) == (True, False)
