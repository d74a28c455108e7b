"""How a job that is followed is shown: a tree that is drawn again and again, lines of changes, or JSON lines."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol, TextIO

import click

from stepward.client.cli.session import Output, Session, has_colour
from stepward.client.tree import HELD, by_time, describe, plain, render_tree, rich_text, seconds
from stepward.client.values import JobState

if TYPE_CHECKING:
    from rich.console import RenderableType

    from stepward.client.values import Agent, Job, JobChange, Step

FRAMES_A_SECOND = 8


class View(Protocol):
    """Shows a job while it is followed."""

    def change(self, change: JobChange) -> None:
        """The job has changed."""

    def look(self, agents: Mapping[str, Agent] | None) -> None:
        """Some time has passed; None: nobody knows about agents at the moment."""

    def say(self, text: str) -> None:
        """Show a line that stays."""

    def close(self) -> None:
        """Nothing follows. The last state stays to be seen."""


def choose_view(session: Session, stream: TextIO) -> View:
    """The view that suits where it goes to."""
    if not session.as_table and stream is sys.stdout:
        return JsonView(session.output)
    return LiveView(stream) if stream.isatty() else LineView(stream)


class LiveView:
    """A tree on a terminal. A thread of rich draws it; what it reads is replaced as a whole."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._job: Job | None = None
        self._agents: Mapping[str, Agent] | None = None
        console = Console(file=stream, no_color=not has_colour(stream), highlight=False)
        self._live = Live(console=console, get_renderable=self._draw, refresh_per_second=FRAMES_A_SECOND)
        self._live.start()

    def change(self, change: JobChange) -> None:
        self._job = change.job

    def look(self, agents: Mapping[str, Agent] | None) -> None:
        self._agents = agents

    def say(self, text: str) -> None:
        self._live.console.print(text, markup=False)

    def close(self) -> None:
        self._live.stop()

    def _draw(self) -> RenderableType:
        job = self._job
        return rich_text(render_tree(job, datetime.now(UTC), self._agents)) if job else ""


class LineView:
    """One line for each change of a step or of the job, for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._job: Job | None = None
        self._steps: dict[str, Step] = {}
        self._lost_said: set[tuple[str, int]] = set()

    def change(self, change: JobChange) -> None:
        before, self._job = self._job, change.job
        definition = f"{change.job.definition_name} v{change.job.definition_version}"
        headline = f"job {change.job.job_id}  {definition}  {change.job.state}"
        if before is None:
            self._line(headline)
        # Of a job with very many steps most are the same as before, and known by being the same objects.
        for step in by_time(step for step in change.job.steps if self._steps.get(step.step_id) is not step):
            self._change_step(step, change.job, first=before is None)
        if before is not None and before.state != change.job.state:
            self._line(headline)

    def _change_step(self, step: Step, job: Job, *, first: bool) -> None:
        known = self._steps.get(step.step_id)
        if known is not None and (known.state, known.attempts) == (step.state, step.attempts):
            return
        self._steps[step.step_id] = step
        # Steps that have not begun say nothing that the definition does not.
        if not (first and step.state == "PENDING"):
            self._line(f"{step.step_id}  {step.state}  {describe(step, job, datetime.now(UTC))}")

    def look(self, agents: Mapping[str, Agent] | None) -> None:
        if self._job is None or agents is None:
            return
        now = datetime.now(UTC)
        for step in self._job.steps:
            if step.state not in HELD or (step.step_id, step.token) in self._lost_said:
                continue
            text = describe(step, self._job, now, agents)
            if text.startswith("agent lost"):
                self._lost_said.add((step.step_id, step.token))
                self._line(f"{step.step_id}  {step.state}  {text}", now)

    def say(self, text: str) -> None:
        click.echo(text, file=self._stream)

    def close(self) -> None:
        if self._job is not None and (self._job.state.final or self._job.state is JobState.ESCALATED):
            for line in render_tree(self._job, datetime.now(UTC))[1 + len(self._job.steps) :]:
                self.say(plain([line]))

    def _line(self, text: str, at: datetime | None = None) -> None:
        """A line with its time since the submission: that of the change, if no other is given."""
        job = self._job
        since = ""
        if job and job.submitted_at:
            since = f"+{seconds(((at or job.updated_at or job.submitted_at) - job.submitted_at).total_seconds())}  "
        self.say(f"{since}{text}")


class JsonView:
    """One JSON document for each change, on stdout."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def change(self, change: JobChange) -> None:
        from stepward.client.cli.json_form import compact, json_form, pretty

        form = {
            "job": json_form(change.job.message),
            "events": [json_form(event.message) for event in change.events],
            "events_missing": change.events_missing,
        }
        click.echo(pretty(form) if self._output is Output.JSON else compact(form))

    def look(self, agents: Mapping[str, Agent] | None) -> None:
        """Nothing that belongs to the data."""

    def say(self, text: str) -> None:
        click.echo(text, err=True)

    def close(self) -> None:
        """Everything is printed."""
