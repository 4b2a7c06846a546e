"""The live display of a run on a terminal."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import rich.live
from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

from proofbox.cli.progress import COLOURS, SHOWN, line_of
from proofbox.model.trace import AttemptEnded

if TYPE_CHECKING:
    from types import TracebackType

    from proofbox.trial.runner import Progress


class Live:
    """A bar, the five counts, and the last trials that did not pass. It draws while it is entered."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._bar = Bar(
            TextColumn("trials"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._bar.add_task("trials", total=None)
        self._counts = Text()
        self._last: deque[Text] = deque(maxlen=SHOWN)
        # Redrawn by its own thread some times a second: an event costs no more than the change of a few strings.
        self._live = rich.live.Live(
            console=console,
            get_renderable=self._render,
            refresh_per_second=10,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def _render(self) -> Group:
        return Group(self._bar, self._counts, *list(self._last))

    def __enter__(self) -> Live:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def say(self, line: str) -> None:
        """Above the display."""
        self._live.console.print(Text(line))

    def __call__(self, progress: Progress) -> None:
        """Takes over what has changed."""
        event = progress.event
        self._bar.update(self._task, completed=sum(progress.counts.values()), total=progress.asked)
        counts = Text(f"{progress.running} running")
        for ending, count in progress.counts.items():
            counts.append("   ")
            counts.append(f"{count} {ending.replace('_', ' ')}", style=COLOURS[ending] if count else "dim")
        self._counts = counts
        if isinstance(event, AttemptEnded) and event.ending != "passed":
            self._last.append(Text(line_of(event), style=COLOURS[event.ending], no_wrap=True, overflow="ellipsis"))
