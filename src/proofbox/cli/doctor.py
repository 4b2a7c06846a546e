"""``proofbox doctor``: what this host can isolate and limit, and the exact remedy for what it lacks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from proofbox.runtime.contract import Missing, Probe

DEFAULT_LEVEL: Final = "container"


@click.command()
@click.option("--runtime", metavar="NAME", help="Only this one.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def doctor(runtime: str | None, as_json: bool) -> int:
    """Asks each runtime what it can do here; some run a real sandbox to prove it.

    The exit status is 0 if a sandbox of the default level (container) can be had, or, with --runtime, if that one is
    usable; else 1.
    """
    import json

    import anyio

    from proofbox.cli.places import owned, written

    lacking = [*written(), *anyio.run(owned)]
    found = anyio.run(_examine, runtime)
    good = any(entry["usable"] and (runtime or entry["level"] == DEFAULT_LEVEL) for entry in found) and not lacking
    if as_json:
        click.echo(json.dumps({"ok": good, "missing": _items(lacking), "runtimes": found}, indent=2))
    else:
        click.echo("".join(f"{line}\n" for line in _told(_items(lacking))), nl=False)
        for entry in found:
            click.echo(_describe(entry))
        click.echo(_summary(found, runtime, good))
    return 0 if good else 1


async def _examine(only: str | None) -> list[dict[str, Any]]:
    from proofbox.errors import Refused, StoreFailed
    from proofbox.host.remedies import explain
    from proofbox.runtime import registry
    from proofbox.runtime.contract import Missing

    # `fake` scripts faults for tests: it isolates nothing and is no answer to what this host can do.
    names = [only] if only else [name for name in registry.names() if name != "fake"]
    found = []
    for name in names:
        try:
            probe = await registry.probe(name)
        except Refused as refused:
            found.append(_entry(name) | {"missing": _items(map(Missing.of, refused.missing))})
            continue
        except StoreFailed as failed:
            found.append(_entry(name) | {"missing": _items([Missing(*explain(str(failed)))])})
            continue
        found.append(_entry(name) | _values(probe))
    return found


def _entry(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "usable": False,
        "level": None,
        "enforces": [],
        "networks": [],
        "users": False,
        "missing": [],
        "notes": [],
        "facts": {},
    }


def _items(missing: Iterable[Missing]) -> list[dict[str, str]]:
    return [{"what": item.what, "remedy": item.remedy} for item in missing]


def _told(missing: list[dict[str, str]]) -> list[str]:
    return [
        f"  missing      {item['what']}" + (f"\n    remedy     {item['remedy']}" if item["remedy"] else "")
        for item in missing
    ]


def _values(probe: Probe) -> dict[str, Any]:
    return {
        "usable": probe.usable,
        "level": probe.level,
        "enforces": sorted(probe.enforces),
        "networks": sorted(probe.networks),
        "users": probe.users,
        "missing": _items(probe.missing),
        "notes": list(probe.notes),
        "facts": probe.facts,
    }


def _describe(entry: dict[str, Any]) -> str:
    from proofbox.model.limits import LIMIT_KINDS

    state = click.style("usable", fg="green") if entry["usable"] else click.style("not usable", fg="red")
    lines = [
        f"{click.style(entry['name'], bold=True)}: {state}" + (f", level {entry['level']}" if entry["level"] else "")
    ]
    if entry["usable"]:
        absent = [kind for kind in LIMIT_KINDS if kind not in entry["enforces"]]
        lines.append(f"  enforces     {', '.join(entry['enforces']) or 'no limit'}")
        if absent:
            lines.append(f"  does not     {', '.join(absent)} (asked for, it is refused)")
        lines.append(
            f"  users        {'several, with a full id range' if entry['users'] else 'one: the root of the sandbox'}"
        )
    lines += _told(entry["missing"])
    lines += [f"  note         {note}" for note in entry["notes"]]
    width = max([12, *map(len, entry["facts"])])
    lines += [f"  {key:<{width}} {value}" for key, value in sorted(entry["facts"].items())]
    return "\n".join(lines) + "\n"


def _summary(found: list[dict[str, Any]], runtime: str | None, good: bool) -> str:
    if runtime:
        return f"Runtime {runtime} can{'' if good else 'not'} be used on this host."
    usable = [entry["name"] for entry in found if entry["usable"] and entry["level"] == DEFAULT_LEVEL]
    if usable:
        return f"Sandboxes of level {DEFAULT_LEVEL} (the default) are made by: {usable[0]}."
    return (
        f"No sandbox of level {DEFAULT_LEVEL} (the default) can be made on this host; what is missing is named above."
    )
