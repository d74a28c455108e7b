"""The demo as a page to read: every batch, token, deadline and second of its three trips."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from stepward.client.demo.screen import HISTORY_COLUMNS, history_rows
from stepward.client.demo.stage import SESSION_TTL_MS
from stepward.client.demo.trips import Journey
from stepward.client.demo.verdict import Finding
from stepward.client.tree import plain, render_tree
from stepward.client.values import JobState

if TYPE_CHECKING:
    from stepward.agents.examples.ledger import Entry

FILE = "trip.md"

RECORD_COLUMNS = ("second", "call", "key", "token", "attempt", "agent's pid", "effect", "answer")

TTL = f"{SESSION_TTL_MS / 1000:g} s"

INTRODUCTION = f"""\
# Three trips, batch by batch

This page was written by `stepward demo --fast --docs docs`: it is what a real run did, not what it should do.
`make docs` writes it anew.

A trip books a flight, then a hotel and a car side by side, then sends the receipt. Flight, hotel and car can be undone.
Two agents do the work; the bookings are made by a travel service, a process of its own, which records every call.

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

LESSONS = {
    1: "Each outcome and the offer that it makes possible stand in the same batch: no time is lost between two steps, "
    "and no crash can come between them.",
    2: "`CarUnavailable` stands in the definition among the kinds that are not worth another attempt. Compensation "
    "goes against the arrows: a step is undone when everything that was built on it has been undone. The receipt, "
    "which waited for the car, is never begun.",
    3: "Killing an agent proves nothing to the cluster: it may be slow, or cut off, and its handler may still act. So "
    "the step waits, and goes to the other agent when the lease has ended on both sides. Its new token is higher, its "
    "key is the same, and the travel service answers the second call with the booking of the first.",
}


def render(journeys: Sequence[Journey], entries: Sequence[Entry], findings: Iterable[Finding]) -> str:
    """The page."""
    from stepward.agents.examples import trip

    definition = trip.DEFINITION.read_text(encoding="utf-8")
    parts = [
        INTRODUCTION,
        f"## The definition\n\n```yaml\n{definition}```",
        *(_journey(journey, entries) for journey in journeys),
        "## Was it as promised?\n",
        _table(("", "claim", "what was seen"), [("✔" if f.holds else "✘", f.claim, f.seen) for f in findings]),
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _journey(journey: Journey, entries: Sequence[Entry]) -> str:
    trip = journey.trip
    given = json.dumps(dict(trip.input), indent=2)
    ended_at = journey.job.ended_at or journey.job.updated_at
    assert ended_at is not None
    tree = plain(render_tree(journey.job, ended_at))
    calls = [entry for entry in entries if entry.call.job == journey.job.job_id]
    parts = [
        f"## Trip {trip.number}: {trip.title}",
        trip.promise,
        f"Input:\n\n```json\n{given}\n```",
        f"At its end:\n\n```\n{tree}\n```",
        "What happened:",
        _table(HISTORY_COLUMNS, history_rows(journey)),
        _killed(journey),
        "What the travel service recorded:",
        _table(RECORD_COLUMNS, [_record_row(journey, entry) for entry in calls]),
        _output(journey),
        LESSONS[trip.number],
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


def _record_row(journey: Journey, entry: Entry) -> tuple[str, ...]:
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
        answer.booking or f"{answer.status} {answer.kind}",
    )


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines)
