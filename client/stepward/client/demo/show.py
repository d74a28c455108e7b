"""The order of events: start everything, make three trips, judge them, end everything."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from stepward.client.blocking_client import Client
from stepward.client.demo import page
from stepward.client.demo.processes import ChildError
from stepward.client.demo.screen import LiveTree, Screen
from stepward.client.demo.stage import AGENTS, Stage, interrupted_by_sigterm
from stepward.client.demo.trips import DEFINITION, KILLED_STEP, Journey, Kill, Trip, trips
from stepward.client.demo.verdict import Finding, judge
from stepward.client.errors import StepwardError
from stepward.client.values import Job, StepState

if TYPE_CHECKING:
    from stepward.agents.examples.ledger import Entry

# How often the tree is drawn.
LOOK_EVERY_S = 0.1

# No trip takes longer, not even the one whose agent is killed; the whole demo stays below a minute.
TRIP_S_MAX = 25.0

PAUSE_S = 1.5

# The server is on this machine; when it does not answer, it is gone.
CALL_S_MAX = 3.0


class DemoError(Exception):
    """Something did not come as promised, and the demo cannot go on."""


def run(*, fast: bool, docs: Path | None, keep: bool) -> int:
    """The whole demo; see `main`."""
    screen = Screen()
    stage = Stage(Path(tempfile.mkdtemp(prefix="stepward-demo-")))
    failed = True
    try:
        with interrupted_by_sigterm():
            failed = not perform(stage, screen, fast=fast, docs=docs)
    except (ChildError, DemoError, StepwardError) as error:
        screen.say(f"✘ {error}", "bold red")
    except KeyboardInterrupt:
        screen.say("interrupted")
        raise
    finally:
        stage.close()
        if keep or failed:
            screen.say(f"Data and logs are in {stage.folder}; the server's log is {stage.folder / 'server.log'}.")
        else:
            shutil.rmtree(stage.folder, ignore_errors=True)
    return 1 if failed else 0


def perform(stage: Stage, screen: Screen, *, fast: bool, docs: Path | None) -> bool:
    """Everything but the cleaning up. Returns whether all came as promised."""
    began = time.monotonic()
    screen.say("Starting a server, a travel service and two agents on this machine ...", "dim")
    stage.open()
    with Client(stage.address, timeout_s=CALL_S_MAX) as client:
        stage.prepare(client)
        screen.say(f"Server at {stage.address}; agents {' and '.join(AGENTS)} wait for work.", "dim")
        journeys = []
        for trip in trips(fast=fast):
            journeys.append(make(trip, client, stage, screen))
            time.sleep(0 if fast else PAUSE_S)
    findings, entries = settle(journeys, stage, screen)
    if docs:
        docs.mkdir(parents=True, exist_ok=True)
        written = docs / page.FILE
        written.write_text(page.render(journeys, entries, findings), encoding="utf-8")
        screen.say(f"Written: {written}", "dim")
    holds = all(finding.holds for finding in findings)
    screen.say(f"{'All as promised' if holds else 'Not as promised'}, in {time.monotonic() - began:.0f} s.", "bold")
    return holds


def make(trip: Trip, client: Client, stage: Stage, screen: Screen) -> Journey:
    """Make one trip and show it."""
    screen.title(f"Trip {trip.number}: {trip.title}")
    screen.say(trip.promise)
    submitted = client.submit(DEFINITION, dict(trip.input))
    kill = None
    with screen.tree() as tree:
        if trip.number == 3:
            kill = kill_holder(submitted.job_id, client, stage, screen, tree)
        job = follow(submitted.job_id, client, stage, tree, until=lambda job: job.state.final)
    journey = Journey(
        trip=trip, job=job, history=tuple(client.history(job.job_id)), agents=dict(stage.names), kill=kill
    )
    screen.history(journey)
    return journey


def follow(job_id: str, client: Client, stage: Stage, tree: LiveTree, *, until: Callable[[Job], bool]) -> Job:
    """Show a job until something holds of it.

    Raises:
        DemoError: It took too long.
    """
    ends_at = time.monotonic() + TRIP_S_MAX
    while True:
        job = client.get(job_id)
        tree.show(job, datetime.now(UTC), stage.sessions(client))
        if until(job):
            return job
        if time.monotonic() > ends_at:
            raise DemoError(f"job {job_id} is {job.state} after {TRIP_S_MAX:.0f} s; it should have moved on by then")
        time.sleep(LOOK_EVERY_S)


def kill_holder(job_id: str, client: Client, stage: Stage, screen: Screen, tree: LiveTree) -> Kill:
    """Wait until the step runs, then kill the agent that holds it."""
    job = follow(
        job_id,
        client,
        stage,
        tree,
        until=lambda job: job.state.final or job.step(KILLED_STEP).state is StepState.RUNNING,
    )
    step = job.step(KILLED_STEP)
    if step.state is not StepState.RUNNING:
        raise DemoError(f"job {job_id} ended {job.state} before its {KILLED_STEP} was seen running")
    child = stage.kill_agent(step.session_id)
    killed_at = datetime.now(UTC)
    # Asked now, when no further heartbeat can move it.
    lease_ends_at = client.get(job_id).step(KILLED_STEP).lease_ends_at
    assert job.submitted_at is not None
    assert lease_ends_at is not None
    screen.say(
        f"  kill -9 {child.pid}: {child.name} dies in the middle of {KILLED_STEP}; nobody else may have it until its "
        "lease has surely ended",
        "bold yellow",
    )
    return Kill(
        agent=child.name,
        pid=child.pid,
        session_id=step.session_id,
        step_id=KILLED_STEP,
        token=step.token,
        at_s=(killed_at - job.submitted_at).total_seconds(),
        lease_ends_s=(lease_ends_at - job.submitted_at).total_seconds(),
    )


def settle(journeys: list[Journey], stage: Stage, screen: Screen) -> tuple[list[Finding], list[Entry]]:
    """Hold what happened against what was promised, and against the travel service's record."""
    from stepward.agents.examples import ledger, travel_record

    entries = ledger.read(stage.ledger)
    record = travel_record.check(entries, {journey.job.job_id: str(journey.job.state) for journey in journeys})
    findings = judge(journeys, entries, record)
    screen.title("Was it as promised?")
    screen.say("From the histories, and from the record that the travel service kept of every call:", "dim")
    screen.findings(findings)
    return findings, entries
