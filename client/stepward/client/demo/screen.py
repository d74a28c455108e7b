"""What a person sees: a live tree on a terminal, lines as they change elsewhere, and tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Self

from rich.box import SIMPLE
from rich.console import Console
from rich.live import Live
from rich.table import Table

from stepward.client.demo.findings import Finding
from stepward.client.demo.stories import Journey
from stepward.client.tree import by_time, describe, plain, render_tree, rich_text
from stepward.client.values import Agent, HistoryEvent, Job

# What a table takes beside its cells: a space after each column, and rich's frame, which is blank here.
PADDING = 1
FRAME = 1

# Wide enough for a line of the history; a pipe has no width of its own.
PIPE_WIDTH = 180

# A terminal that is narrower shows the columns that tell the story, and cuts what does not fit.
NARROW_WIDTH = 130
NARROW_COLUMNS = ("batch", "second", "what", "step", "agent", "detail")

HISTORY_COLUMNS = ("batch", "second", "what", "step", "attempt", "token", "agent", "timer", "detail")


class Screen:
    """Writes to a console."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        if not self._console.is_terminal:
            self._console.width = PIPE_WIDTH

    def say(self, text: str, style: str = "") -> None:
        """One line, or several."""
        self._console.print(text, style=style, markup=False, soft_wrap=True)

    def title(self, text: str) -> None:
        """What comes now."""
        self.say(f"\n{text}", "bold")

    def tree(self) -> LiveTree:
        """Follow one job; use it as a context manager."""
        return LiveTree(self._console)

    def history(self, journey: Journey) -> None:
        """What happened, as a table."""
        wanted = NARROW_COLUMNS if self._console.width < NARROW_WIDTH else HISTORY_COLUMNS
        rows = history_rows(journey)
        table = Table(box=SIMPLE, pad_edge=False, padding=(0, PADDING, 0, 0))
        columns = {name: [row[place] for row in rows] for place, name in enumerate(HISTORY_COLUMNS) if name in wanted}
        widths = {name: max(map(len, (name, *cells))) for name, cells in columns.items()}
        # The detail alone is cut where there is no room.
        room = self._console.width - sum(widths.values()) + widths["detail"] - (PADDING + FRAME) * len(widths) - FRAME
        widths["detail"] = max(len("detail"), min(widths["detail"], room))
        for name, width in widths.items():
            table.add_column(name, no_wrap=True, overflow="ellipsis", width=width)
        for row in zip(*columns.values(), strict=True):
            table.add_row(*row)
        self._console.print(table)

    def findings(self, findings: Iterable[Finding]) -> None:
        """One line each."""
        for finding in findings:
            mark, style = ("✔", "green") if finding.holds else ("✘", "bold red")
            self.say(f"{mark} {finding.claim} ({finding.seen})", style)


class LiveTree:
    """The tree of one job while it changes.

    On a terminal it is drawn again and again in its place. Elsewhere a line is written when its step has changed, and
    once a second while a step waits for the lease of an agent that is gone.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._said: dict[str, object] = {}

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, job: Job, now: datetime, agents: Mapping[str, Agent]) -> None:
        """The job as it is now."""
        if self._live:
            self._live.update(rich_text(render_tree(job, now, agents)), refresh=True)
            return
        for step in by_time(job.steps):
            words = describe(step, job, now, agents)
            waits = words.startswith("agent lost")
            state = (step.state, step.attempts, int(now.timestamp()) if waits else 0)
            if self._said.get(step.step_id) != state:
                self._said[step.step_id] = state
                self._line(f"  {step.step_id}: {words}")
        if self._said.get("") != job.state:
            self._said[""] = job.state
            header, *rest = render_tree(job, now, agents)
            self._line(plain([header, *(line for line in rest if line.text.startswith("why"))]))

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


def history_rows(journey: Journey) -> list[tuple[str, ...]]:
    """The history as words, in the columns of HISTORY_COLUMNS. A batch is named once, where it begins."""
    rows: list[tuple[str, ...]] = []
    batch = 0
    for event in journey.history:
        begins = event.revision != batch
        batch = event.revision
        rows.append(
            (
                str(event.revision) if begins else "",
                second(journey.job, event.at) if begins else "",
                event.type,
                event.step_id,
                str(event.attempt or ""),
                str(event.token or ""),
                journey.agents.get(event.session_id, event.session_id),
                timer(event),
                event.detail,
            )
        )
    return rows


def second(job: Job, at: datetime | None) -> str:
    """Seconds since the job was submitted."""
    return f"{(at - job.submitted_at).total_seconds():.3f}" if at and job.submitted_at else ""


def timer(event: HistoryEvent) -> str:
    """How long until the timer that the event set is due."""
    return f"in {event.due_in.total_seconds():g} s" if event.due_in is not None else ""
