"""A demo as a page to read: every batch, token, deadline and second of its jobs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from stepward.client.definition_file import load
from stepward.client.demo.findings import Finding
from stepward.client.demo.screen import HISTORY_COLUMNS, history_rows
from stepward.client.demo.stage import SESSION_TTL_MS
from stepward.client.demo.stories import Journey
from stepward.client.tree import plain, render_tree
from stepward.client.values import JobState

if TYPE_CHECKING:
    from stepward.client.demo.plays import Play
    from stepward.v1.definition_pb2 import Definition

RECORD_COLUMNS = ("second", "call", "key", "token", "attempt", "agent's pid", "effect", "answer")

TTL = f"{SESSION_TTL_MS / 1000:g} s"

READING = f"""\
How to read the tables:

- A **batch** is what the leader decided in one go and wrote to disk before anything followed from it. Rows without a
  number belong to the batch above. Batches that are missing here held heartbeats, or other jobs.
- A **token** is the number of an assignment: 2^48 for the cluster's incarnation, which a restore raises, plus the
  number of its batch. It only ever grows, so whoever compares tokens knows which attempt is the newer.
- **timer** is what that event set: how long until the retry, or until the time limit of the step.
- **StepOffered** is the moment at which the work goes to an agent. A handler that ends within half a second reports its
  start and its outcome together; one that takes longer says in between that it has started (`StepStarted`). An offer
  without any word is asked about after {TTL}.
- An agent's **lease** here lasts {TTL} from its last heartbeat that was answered. Nobody else gets its work before
  that time, a third more, and a grace have passed, so that the agent always knows first.
"""


def render(play: Play, journeys: Sequence[Journey], entries: Sequence[Any], findings: Iterable[Finding]) -> str:
    """The page."""
    file = play.file()
    parts = [
        play.introduction,
        READING,
        f"## The definition\n\n{picture(load(file))}\n\n```yaml\n{file.read_text(encoding='utf-8')}```",
        *(_journey(play, journey, entries) for journey in journeys),
        "## Was it as promised?\n",
        _table(("", "claim", "what was seen"), [("✔" if f.holds else "✘", f.claim, f.seen) for f in findings]),
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def picture(definition: Definition) -> str:
    """The steps as a Mermaid graph: who waits for whom, and what would undo it."""
    lines = ["flowchart LR"]
    for number, step in enumerate(definition.steps):
        undo = f"<br/><i>undo: {step.undo.action}</i>" if step.HasField("undo") else ""
        verify = f"<br/><i>verify: {step.verify.action}</i>" if step.HasField("verify") else ""
        lines.append(f'    s{number}["{step.id}{verify}{undo}"]')
    numbers = {step.id: number for number, step in enumerate(definition.steps)}
    lines += [f"    s{numbers[need]} --> s{numbers[step.id]}" for step in definition.steps for need in step.needs]
    return "```mermaid\n" + "\n".join(lines) + "\n```"


def _journey(play: Play, journey: Journey, entries: Sequence[Any]) -> str:
    story = journey.story
    given = json.dumps(dict(story.input), indent=2)
    ended_at = journey.job.ended_at or journey.job.updated_at
    assert ended_at is not None
    tree = plain(render_tree(journey.job, ended_at))
    calls = [entry for entry in entries if entry.call.job == journey.job.job_id]
    parts = [
        f"## {story.name.capitalize()}: {story.title}",
        story.promise,
        f"Input:\n\n```json\n{given}\n```",
        f"At its end:\n\n```\n{tree}\n```",
        "What happened:",
        _table(HISTORY_COLUMNS, history_rows(journey)),
        _killed(journey),
        f"What the {play.cast.service} recorded:",
        _table(RECORD_COLUMNS, [_record_row(play, journey, entry) for entry in calls]),
        _output(journey),
        story.lesson,
    ]
    return "\n\n".join(part for part in parts if part)


def _killed(journey: Journey) -> str:
    kill = journey.kill
    if kill is None:
        return ""
    return (
        f"At second {kill.at_s:.3f} `{kill.agent}`, process {kill.pid}, was killed with `kill -9`. It held "
        f"{kill.step_id} with token {kill.token}. From its last heartbeat the cluster then counts {TTL} (the lease), "
        f"{SESSION_TTL_MS / 3000:g} s (a third more, since the heartbeat may have been recorded late), 2 s (for a "
        "process that is slow to die) and half a second (for clocks that drift): until second "
        f"{kill.lease_ends_s:.3f} nobody else may have the step."
    )


def _output(journey: Journey) -> str:
    if journey.job.state is not JobState.COMPLETED:
        return ""
    return f"The job's output: `{json.dumps(journey.job.output)}`."


def _record_row(play: Play, journey: Journey, entry: Any) -> tuple[str, ...]:
    call, answer = entry.call, entry.answer
    assert journey.job.submitted_at is not None
    at_s = entry.at_ms / 1000 - journey.job.submitted_at.timestamp()
    return (
        f"{at_s:.3f}",
        f"{call.service}/{call.verb}",
        call.key.removeprefix(f"{call.job}/"),
        str(call.token),
        str(call.attempt),
        str(call.agent_pid),
        "yes" if answer.effect else "no",
        play.number(answer) or f"{answer.status} {answer.kind}".rstrip(),
    )


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines)
