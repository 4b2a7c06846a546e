"""What a person sees while trials run: a live display on a terminal, now and then a line anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

import click

from proofbox.model.trace import AttemptEnded, TrialEnded
from proofbox.store.render import printable

if TYPE_CHECKING:
    from proofbox.trial.runner import Progress

EVERY: Final = 10.0
"""Seconds between two plain lines."""
SHOWN: Final = 8
"""Trials that did not pass, the last ones, on the live display."""
COLOURS: Final = {"passed": "green", "failed": "red", "limit": "yellow", "infrastructure": "magenta", "not_run": "blue"}


class Display(Protocol):
    """Takes what happens; never asks for anything."""

    def __call__(self, progress: Progress) -> None: ...

    def say(self, line: str) -> None:
        """Shows a message without spoiling what is drawn."""
        ...


def line_of(event: AttemptEnded) -> str:
    """One line about an attempt's end; what it says may come from a sandbox and is made printable."""
    again = f" (attempt {event.attempt})" if event.attempt > 1 else ""
    return printable(f"{event.ending:<14} {event.trial}{again}  {event.reason}".rstrip(), 200)


def counts_of(progress: Progress) -> str:
    """All five endings, also those that did not happen."""
    return ", ".join(f"{count} {ending.replace('_', ' ')}" for ending, count in progress.counts.items())


class Plain:
    """Lines on standard error: each attempt that broke; the counts each ten seconds and each tenth of the way."""

    def __init__(self) -> None:
        self._due = time.monotonic() + EVERY
        self._tenth = 0

    def __call__(self, progress: Progress) -> None:
        """Prints at most two lines."""
        event = progress.event
        if isinstance(event, AttemptEnded) and event.ending == "infrastructure":
            click.echo(line_of(event), err=True)
        if not isinstance(event, TrialEnded):
            return
        ended = sum(progress.counts.values())
        tenth = ended * 10 // max(progress.asked, 1)
        if tenth > self._tenth or time.monotonic() >= self._due:
            self._tenth, self._due = tenth, time.monotonic() + EVERY
            click.echo(f"{ended}/{progress.asked} trials: {counts_of(progress)}", err=True)

    def say(self, line: str) -> None:
        """As it is."""
        click.echo(line, err=True)


class Silent:
    """For ``--json``: nothing but the result, and messages."""

    def say(self, line: str) -> None:
        """As it is."""
        click.echo(line, err=True)

    def __call__(self, progress: Progress) -> None:
        """Says nothing."""


@contextmanager
def display(quiet: bool) -> Iterator[Display]:
    """The one that fits where standard error leads. The terminal is as before when it ends, however that is."""
    if quiet:
        yield Silent()
    elif not sys.stderr.isatty():
        yield Plain()
    else:
        from proofbox.cli.live import Live

        with Live() as live:
            yield live
