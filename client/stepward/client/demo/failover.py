"""`stepward demo --nodes 3 --kill-leader`: trips go on while the node that leads is killed.

Some callers book trips one after the other. In the middle the leader dies of SIGKILL, another node begins to lead, and
the first one comes back and follows. What the gap was is read from the histories of the trips: between the last batch
that the old leader committed and the first of the new one. At the end the travel service's record is checked.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from stepward.client.blocking_client import Client
from stepward.client.demo.acting import DemoError
from stepward.client.demo.cluster_stage import ClusterStage
from stepward.client.demo.findings import Finding
from stepward.client.demo.processes import ChildError
from stepward.client.demo.screen import Screen
from stepward.client.demo.stage import interrupted_by_sigterm
from stepward.client.demo.trips import DEFINITION, file
from stepward.client.demo.verdict import record_findings
from stepward.client.errors import StepwardError
from stepward.client.values import HistoryEvent, JobResult, JobState

if TYPE_CHECKING:
    from stepward.agents.examples.travel_record import Report

# Callers, and how long each rests between two trips: enough for the gap to be seen in the histories.
CALLERS = 4
REST_S = 0.15
# How long trips go on before the leader is killed and after another one leads.
BEFORE_S, BEFORE_S_FAST = 4.0, 2.0
AFTER_S, AFTER_S_FAST = 4.0, 2.0
# How long one trip may take, with a failover in it.
TRIP_S_MAX = 30.0
# What is promised of the gap.
GAP_S_MAX = 2.5
# How long the killed node may take to be as new as the others.
CATCH_UP_S_MAX = 20.0
LOOK_EVERY_S = 0.05

WISH = {"traveller": "Ada Lovelace", "flight": "LHR-TRN", "hotel": "quiet", "car": "small"}


@dataclass(frozen=True)
class Failover:
    """What happened to leadership. `killed_at` is None when nobody was killed."""

    led: str
    leads: str
    killed_at: datetime | None = None


@dataclass
class Trips:
    """Trips that callers book at the same time, one after the other each, until they are told to stop."""

    client: Client
    results: list[JobResult] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """One caller. Ends when it is told to, or when a trip raises what no retry has mended."""
        while not self._stop.wait(REST_S):
            self.results.append(self.client.run(DEFINITION, dict(WISH), check=False, wait_max_s=TRIP_S_MAX))

    def stop(self) -> None:
        """Begin no more."""
        self._stop.set()


def run(count: int, *, kill_leader: bool, fast: bool, keep: bool) -> int:
    """The whole demo; the exit code."""
    screen = Screen()
    stage = ClusterStage(Path(tempfile.mkdtemp(prefix="stepward-demo-")), count)
    failed = True
    try:
        with interrupted_by_sigterm():
            failed = not perform(stage, screen, kill_leader=kill_leader, fast=fast)
    except (ChildError, DemoError, StepwardError) as error:
        screen.say(f"✘ {error}", "bold red")
    finally:
        stage.close()
        if keep or failed:
            screen.say(f"Data and logs are in {stage.folder}.")
        else:
            shutil.rmtree(stage.folder, ignore_errors=True)
    return 1 if failed else 0


def perform(stage: ClusterStage, screen: Screen, *, kill_leader: bool, fast: bool) -> bool:
    """Everything but the cleaning up. Returns whether all came as promised."""
    began = time.monotonic()
    screen.say(f"Starting {stage.count} nodes, a travel service and two agents on this machine ...", "dim")
    stage.open()
    with Client(stage.addresses) as client:
        client.apply_definition(file())
        stage.wait_for_agents(client)
        led = stage.leader()
        screen.say(f"{led} leads. {CALLERS} callers book trips, one after the other each.", "dim")
        trips = Trips(client)
        with ThreadPoolExecutor(CALLERS) as pool:
            callers = [pool.submit(trips.run) for _ in range(CALLERS)]
            try:
                failover = _meanwhile(stage, screen, led, kill_leader=kill_leader, fast=fast)
            finally:
                trips.stop()
            for caller in callers:
                caller.result()
        screen.say(f"{len(trips.results)} trips were booked.", "dim")
        events = [event for result in trips.results for event in client.history(result.job.job_id)]
        same = stage.wait_until_alike(CATCH_UP_S_MAX)
    findings = judge(failover, events, trips.results, same, _record(stage, trips.results))
    if failover.killed_at is not None:
        screen.say(note(failover, gap_s(events, failover.killed_at)), "bold")
    screen.title("Was it as promised?")
    screen.findings(findings)
    holds = all(finding.holds for finding in findings)
    screen.say(f"{'All as promised' if holds else 'Not as promised'}, in {time.monotonic() - began:.0f} s.", "bold")
    return holds


def _meanwhile(stage: ClusterStage, screen: Screen, led: str, *, kill_leader: bool, fast: bool) -> Failover:
    """What happens while trips are booked."""
    time.sleep(BEFORE_S_FAST if fast else BEFORE_S)
    if not kill_leader:
        time.sleep(AFTER_S_FAST if fast else AFTER_S)
        return Failover(led, stage.leader())
    led = stage.leader()
    pid, killed_at = stage.kill(led)
    screen.say(f"  kill -9 {pid}: {led}, which leads, dies; the others will miss it", "bold yellow")
    leads = stage.leader(other_than=led)
    screen.say(f"  {leads} leads; {led} is started again", "bold yellow")
    stage.start_again(led)
    time.sleep(AFTER_S_FAST if fast else AFTER_S)
    return Failover(led, leads, killed_at)


def _record(stage: ClusterStage, results: Iterable[JobResult]) -> Report:
    from stepward.agents.examples import ledger, travel_record

    states = {result.job.job_id: str(result.job.state) for result in results}
    return travel_record.check(ledger.read(stage.ledger), states)


def gap_s(events: Iterable[HistoryEvent], killed_at: datetime) -> float | None:
    """Seconds between the last batch before a moment and the first one after it, as the histories tell; pure.

    All nodes of the demo have one wall clock, and one that was killed commits nothing more.
    """
    times = sorted(event.at for event in events if event.at is not None)
    before = [at for at in times if at <= killed_at]
    after = [at for at in times if at > killed_at]
    return (after[0] - before[-1]).total_seconds() if before and after else None


def note(failover: Failover, gap: float | None) -> str:
    """The failover in one line; pure."""
    how_long = "an unknown time" if gap is None else f"{gap:.2f} s"
    return f"{failover.led} led, {failover.leads} leads; from its last batch to the first of the other: {how_long}"


def judge(
    failover: Failover,
    events: Sequence[HistoryEvent],
    results: Sequence[JobResult],
    same: str,
    record: Report,
) -> list[Finding]:
    """Was it as promised? Pure. `same` says how the rows of all nodes compare: empty when they are equal."""
    states = sorted({str(result.job.state) for result in results})
    findings = [
        Finding(
            claim=f"all {len(results)} trips completed, and no caller saw an error",
            seen=", ".join(states) or "no trips",
            holds=states == [str(JobState.COMPLETED)],
        ),
        Finding(claim="all nodes hold the same rows", seen=same or "equal hashes", holds=not same),
    ]
    if failover.killed_at is not None:
        gap = gap_s(events, failover.killed_at)
        findings.insert(
            0,
            Finding(
                claim=f"another node led, and work went on within {GAP_S_MAX} s",
                seen=f"{failover.led}, then {failover.leads}; gap {'unknown' if gap is None else f'{gap:.2f} s'}",
                holds=failover.led != failover.leads and gap is not None and gap <= GAP_S_MAX,
            ),
        )
    return [*findings, *record_findings(record)]
