"""``scripts/bench [--quick] [--json FILE] [GROUP ...]``: every group measures ours and its peers in one run."""

from __future__ import annotations

import argparse
import importlib
import json
import platform
from pathlib import Path

import anyio

from bench.measure import Row, table

GROUPS = ("life", "command", "density", "pool", "fork", "template", "microvm", "gvisor", "humaneval", "trial", "blame")


async def measure(groups: list[str], quick: bool) -> list[Row]:
    """All rows of the groups named."""
    rows: list[Row] = []
    for group in groups:
        rows += await importlib.import_module(f"bench.{group}").measure(quick)
    return rows


def main() -> None:
    """Parses the command line, prints the table."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}; all if none is named")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rounds: for a look, not for a figure")
    parser.add_argument("--json", type=Path, help="write the rows there too")
    args = parser.parse_args()
    groups = args.groups or list(GROUPS)
    if unknown := set(groups) - set(GROUPS):
        parser.error(f"no group {min(unknown)!r}; there are {', '.join(GROUPS)}")
    rows = anyio.run(measure, groups, args.quick)
    print(f"{platform.system()} {platform.release()} {platform.machine()}, Python {platform.python_version()}")
    print(table(rows))
    if args.json:
        args.json.write_text(json.dumps([row.to_json() for row in rows], indent=1) + "\n")


main()
