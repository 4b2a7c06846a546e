"""What a Dockerfile comes to: its stages, its steps with their variables, and errors with their lines."""

from __future__ import annotations

import platform
from collections.abc import Mapping

import pytest

from proofbox.build.dockerfile import parse
from proofbox.build.plan import CopyFiles, MakeDirectory, Plan, RunCommand, Start, plan, with_bases
from proofbox.build.recipe import Copy, Recipe, Run, recipe
from proofbox.build.toml import parse as parse_toml
from proofbox.errors import InvalidInput
from proofbox.templates.image import architecture

pytest.importorskip("dockerfile")


def planned(text: str, start: Start | None = None, given: Mapping[str, str] | None = None) -> Plan:
    """The last stage of a Dockerfile over ``FROM base``."""
    made = parse(f"FROM base\n{text}")
    return plan(made, made.stages[-1], start or Start(env={"PATH": "/bin"}), given or {})


def ran(text: str) -> RunCommand:
    """Its last action, which runs something."""
    action = planned(text).actions[-1]
    assert isinstance(action, RunCommand)
    return action


def copied(text: str) -> CopyFiles:
    """Its last action, which copies something."""
    action = planned(text).actions[-1]
    assert isinstance(action, CopyFiles)
    return action


def test_commands_run_by_the_shell_or_without_one() -> None:
    """Shell text is for the shell that was set; a list is run as it is; continued lines are one."""
    assert ran("RUN a && \\\n # comment\n  b").argv[:2] == ("/bin/sh", "-c")
    assert ran("RUN a && \\\n # comment\n  b").argv[2].split() == ["a", "&&", "b"]
    assert ran('RUN ["a", "$B"]').argv == ("a", "$B")
    assert ran('SHELL ["/bin/bash", "-lc"]\nRUN a').argv == ("/bin/bash", "-lc", "a")


def test_documents_are_scripts() -> None:
    """One alone is the text for the shell; one for a program goes to it as the shell does it."""
    assert ran("RUN <<EOT\nset -e\necho $A\nEOT").argv[2] == "set -e\necho $A\n"
    assert ran("RUN <<-EOT\n\techo a\n\tEOT").argv[2] == "echo a\n"
    assert ran("RUN <<EOT cat > /x\nhello\nEOT").argv[2].startswith("<<EOT cat > /x\nhello\nEOT")
    assert "#!/usr/bin/env python3\nprint(1)\n" in ran("RUN <<EOT\n#!/usr/bin/env python3\nprint(1)\nEOT").argv[2]


def test_variables_are_those_of_their_place() -> None:
    """ENV goes on and is in the template, ARG ends with the stage; within one ENV no value sees another."""
    made = planned("ARG V=1\nENV A=$V B=${A:-none}\nENV B=$A\nRUN x\nENV A=2", given={"V": "7"})
    assert made.env == {"PATH": "/bin", "A": "2", "B": "7"}
    (run,) = made.actions
    assert isinstance(run, RunCommand)
    assert dict(run.env) == {"PATH": "/bin", "A": "7", "B": "7", "V": "7"}
    assert planned("ENV A='b c' D=\"e f\"").env["A"] == "b c"
    assert planned("ENV A b c").env["A"] == "b c"
    assert dict(ran("ARG NONE\nRUN x").env) == {"PATH": "/bin"}


def test_directories_and_users_hold_from_their_place_on() -> None:
    """A relative directory is below the one before; the last ones are the template's."""
    made = planned("WORKDIR /a\nWORKDIR b/../c\nUSER me:us\nRUN x")
    assert [action.path for action in made.actions if isinstance(action, MakeDirectory)] == ["/a", "/a/c"]
    assert (made.cwd, made.user) == ("/a/c", "me:us")
    assert (ran("USER me\nRUN x").user, ran("WORKDIR /w\nRUN x").cwd) == ("me", "/w")


def test_copies_say_from_where_to_where_and_whose() -> None:
    """Relative targets are below the directory; flags, lists and documents are understood."""
    copy = copied("ENV D=dir\nWORKDIR /w\nCOPY --from=other --chown=1:2 --chmod=0755 a $D/*.py sub/")
    assert (copy.sources, copy.to, copy.origin, copy.owner, copy.mode) == (
        ("a", "dir/*.py"),
        "/w/sub/",
        "other",
        "1:2",
        0o755,
    )
    assert copied('COPY ["a b", "/c d"]').sources == ("a b",)
    assert copied("COPY a .").to == "/"
    assert copied("ADD a.tar /x").unpack
    assert copied("ENV A=1\nCOPY <<x <<'y' /d/\n$A\nx\n$A\ny").inline == (("x", "1\n"), ("y", "$A\n"))


def test_what_nobody_obeys_is_on_record() -> None:
    """The base's stays unless it is replaced; an entry point of its own leaves the base's command out."""
    start = Start(facts={"cmd": '["base"]', "labels": '{"a":"1"}', "exposed_ports": '["1"]', "source": "x"})
    made = planned('LABEL b=2 a="3 4"\nEXPOSE 80/tcp\nENTRYPOINT ["e"]\nHEALTHCHECK --interval=3s CMD x', start)
    assert made.facts["labels"] == '{"a":"3 4","b":"2"}'
    assert made.facts["exposed_ports"] == '["1","80/tcp"]'
    assert made.facts["entrypoint"] == '["e"]'
    assert "cmd" not in made.facts
    assert "source" not in made.facts
    assert planned("CMD a b").facts["cmd"] == '["/bin/sh","-c","a b"]'


def test_stages_are_built_if_the_result_needs_them() -> None:
    """By name, by number, as base or to copy from; others are left out."""
    text = """
ARG TAG=1
FROM img:$TAG AS one
FROM scratch AS unused
FROM one AS Two
COPY --from=0 a b
FROM other
COPY --from=two a b
"""
    made = parse(text)
    assert with_bases(made, {}).stages[0].base == "img:1"
    assert with_bases(made, {"TAG": "9"}).stages[0].base == "img:9"
    assert made.needed(made.last()) == [0, 2, 3]
    assert parse(text, target="one").needed(parse(text, target="one").last()) == [0]
    chosen = with_bases(parse("ARG KIND=dev\nFROM a AS dev\nFROM a AS prod\nFROM ${KIND}"), {"KIND": "prod"})
    assert chosen.needed(chosen.last()) == [1, 2]


def test_arguments_say_what_is_built_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the form that download links have; a stage sees those that it asks for."""
    text = (
        "ARG TARGETPLATFORM\nARG TARGETVARIANT\nARG BUILDOS\nENV A=$TARGETPLATFORM,$TARGETVARIANT,$BUILDOS,$BUILDARCH"
    )
    for machine, seen in {
        "x86_64": "linux/amd64,,linux,",
        "aarch64": "linux/arm64,,linux,",
        "armv7l": "linux/arm/v7,v7,linux,",
    }.items():
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        assert planned(text).env["A"] == seen


def test_this_machine_has_more_names_than_one() -> None:
    """What a Dockerfile asks of a platform in any way that means this host; others are refused, see below."""
    own, variant = architecture()
    names = [
        "linux",
        own,
        f"linux/{own}",
        f"linux/{platform.machine()}",
        "$BUILDPLATFORM",
        "${TARGETPLATFORM:-x}",
        "$NONE",
    ]
    names += [f"linux/{own}/{variant}"] if variant else []
    for name in names:
        assert with_bases(parse(f"FROM --platform={name} a"), {}).stages[0].base == "a", name


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("FROM a\nONBUILD RUN x", 2, "ONBUILD is not supported"),
        ("FROM a\n\n\nFOO x", 4, "FOO is not supported"),
        ("FROM a\nADD https://example.org/x /x", 2, "example.org"),
        ("FROM a\nCOPY --parents a b", 2, "--parents"),
        ("FROM a\nCOPY --chmod=u+x a b", 2, "--chmod"),
        ("FROM a\nSHELL /bin/bash", 2, "SHELL takes a list"),
        ("RUN x\nFROM a", 1, "before the first FROM"),
        ("FROM a b", 1, "FROM takes one image"),
        ("FROM a\nENV A=${B#x}", 2, "only :-"),
        ("FROM $NONE", 1, "names nothing"),
        ("FROM ${NONE#x}", 1, "only :-"),
        ("ARG A=s390x\nFROM --platform=linux/$A a", 2, "--platform=linux/s390x, but this host is"),
        ("FROM a\nFROM --platform=windows/amd64 a", 2, "--platform=windows/amd64"),
        ("FROM a\nRUN", 2, "RUN takes a command"),
        ("FROM a\nRUN []", 2, "RUN takes a command"),
        ("FROM a\nCOPY --from=0 x y", 2, "stage that is above"),
        ("FROM a AS b\nFROM a\nCOPY --from=$B x y", 3, "no variables there"),
        ('FROM a\nENV A="${B:?is needed}"', 2, "is needed"),
        ("FROM a\nENV A=\nENV B=${A?x} C=${A:?}", 3, "has no value"),
    ],
)
def test_what_is_not_supported_is_an_error_with_its_line(text: str, line: int, what: str) -> None:
    """Nothing is left out in silence."""

    def understand() -> None:
        made = parse(text)
        with_bases(made, {})
        plan(made, made.stages[-1], Start(), {})

    with pytest.raises(InvalidInput, match=f"line {line}: .*{what}"):
        understand()


@pytest.mark.parametrize("text", ["", "# only a comment", "# escape=`\nFROM a", "FROM a AS b\nFROM c"])
def test_what_is_no_dockerfile_for_us_is_refused(text: str) -> None:
    """An empty one, another escape character, a target that is not there."""
    with pytest.raises(InvalidInput):
        parse(text, target="none")


def test_recipes_in_toml_and_python_say_the_same() -> None:
    """Steps of the same kinds; what looks like a variable in ``env`` is none."""
    made = parse_toml(
        """
base = "debian/12"
network = "host"
limits = {memory = 1000000000}
steps = [
  {run = "a"},
  {run = ["b", "c"], network = "none"},
  {copy = ["x", "y"], to = "/d/", owner = "me", mode = "0644"},
  {env = {A = "$B 'c'"}},
  {workdir = "/w"},
  {user = "me"},
]
"""
    )
    assert (made.network, made.limits.memory) == ("host", 1_000_000_000)
    start = Start()
    done = plan(made, made.stages[0], start, {})
    assert (done.env, done.cwd, done.user) == ({"A": "$B 'c'"}, "/w", "me")
    same = recipe(
        "debian/12",
        Run(command="a", text="run a"),
        Run(command=("b", "c"), network="none", text="run b c"),
        Copy(sources=("x", "y"), to="/d/", owner="me", mode=0o644, text="copy x y"),
        network="host",
    )
    assert done.actions[:3] == plan(same, same.stages[0], start, {}).actions


@pytest.mark.parametrize(
    "text",
    [
        "",
        'base = "a"\nother = 1',
        'base = "a"\nsteps = [{run = "a", user = "b"}]',
        'base = "a"\nsteps = [{}]',
        'base = "a"\nsteps = [{copy = "a", mode = "rwx"}]',
        'base = "a"\nsteps = [{copy = "a", mode = "-1"}]',
        'base = "a"\nsteps = [{copy = "a", mode = "7777777"}]',
        'base = "a"\nsteps = [{copy = []}]',
        'base = ""',
        'base = "a"\nnetwork = "all"',
        "base = [",
    ],
)
def test_a_recipe_that_says_something_else_is_refused(text: str) -> None:
    """Unknown words, two things in one step, and no base."""
    with pytest.raises(InvalidInput, match=r"recipe\.toml"):
        parse_toml(text)


def test_an_argument_that_no_recipe_knows_is_told() -> None:
    """The names of all ARGs are known before anything is built."""
    made: Recipe = parse("ARG A\nFROM a\nARG B=1\nARG C D=2")
    assert made.arguments() == {"A", "B", "C", "D"}
