"""Where a fault is played: a node, the recording service and agents, all real processes, and the jobs of its cells."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from stepward.agents.examples.ledger import read_as
from stepward.client import AsyncClient, Definition, WaitTimedOut
from stepward.client.definition_options import Retry, Timeouts, Undo, Verify
from stepward.client.demo.processes import Child, stop_all
from stepward.client.tree import plain, render_tree
from tests.cluster import fault_cells, fault_service
from tests.cluster.fault_agent import Plan
from tests.cluster.fault_cells import Bound, Cell, Fault, Kind
from tests.cluster.fault_service import Entry
from tests.cluster.fault_sightings import STEP, Began, Event, Sighting
from tests.cluster.nodes import Nodes
from tests.cluster.rig import LOOK_EVERY_S, Rig, until
from tests.repo.sources import ROOT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stepward.client.values import HistoryEvent

AGENT = "tests.cluster.fault_agent"
NOBODY = "nobody"
MARK = "mark"

# Longer than any cell takes on a busy machine, also where leases last as long as three nodes need them to.
SETTLED_S_MAX = 60.0
BEGUN_S_MAX = 40.0
STOP_S_MAX = 3.0

SUFFIX = {"loop": "", "thread": "-on-thread", "process": "-in-process"}
RETRY = Retry(attempts_max=3, initial="50ms", cap="50ms")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def definition(cell: Cell) -> Definition:
    """The job of a cell: one step that does its deed, and for an undo another that fails for good."""
    suffix = SUFFIX[cell.given.runs]
    undoing = cell.kind is Kind.UNDOING
    mine, far = _timeouts(cell.given.bound), _timeouts(Bound.NOT_NOTICED)
    queue = NOBODY if cell.fault is Fault.NO_AGENT else cell.fault.value
    made = Definition(cell.id)
    keyed = cell.kind in (Kind.REPEATABLE, Kind.UNDOING)
    troubled_undo = Undo(f"undo{suffix}", queue=queue, retry=RETRY, timeouts=mine)
    deed = made.step(
        STEP,
        action="do" if undoing else f"do{suffix}",
        queue=cell.fault if undoing else queue,
        retry=RETRY,
        timeouts=far if undoing else mine,
        effect="idempotent" if keyed else "non_idempotent",
        undo=(troubled_undo if undoing else Undo("undo", queue=cell.fault, timeouts=far)) if keyed else None,
        verify=Verify("ask", queue=cell.fault, timeouts=far) if cell.kind is Kind.ASKABLE else None,
    )
    if undoing:
        # Where the undo must begin at a moment of ours, nothing fails: the job is cancelled.
        waits = cell.fault is Fault.AGENT_BLOCKED_BEFORE
        made.step("wreck", queue=NOBODY if waits else cell.fault, needs=[deed], input={}, timeouts=far)
    return made


def _timeouts(bound: Bound) -> Timeouts:
    far_s = fault_cells.FAR_MS / 1000
    match bound:
        case Bound.START_TO_CLOSE:
            return Timeouts(start_to_close=fault_cells.START_TO_CLOSE_MS / 1000, queue=far_s)
        case Bound.HEARTBEAT:
            return Timeouts(start_to_close=far_s, heartbeat=fault_cells.HEARTBEAT_MS / 1000, queue=far_s)
        case Bound.QUEUE:
            return Timeouts(start_to_close=far_s, queue=fault_cells.QUEUE_MS / 1000)
        case _:
            return Timeouts(start_to_close=far_s, queue=far_s)


class Stage:
    """One node and one recording service, for as many faults as like to share them."""

    def __init__(self, rig: Rig, client: AsyncClient, service: Child, ledger: Path) -> None:
        self.rig = rig
        self.client = client
        self._service = service
        self._ledger = ledger

    @classmethod
    @asynccontextmanager
    async def opened(cls, folder: Path, *, three_nodes: bool = False) -> AsyncIterator[Stage]:
        """A stage in a folder of its own, with one node or three; all that it has started ends with it."""
        await asyncio.to_thread(folder.mkdir, parents=True)
        ledger = folder / "deeds.jsonl"
        command = [sys.executable, "-m", fault_service.MODULE, "--ledger", str(ledger)]
        # A dozen agents are lost at once there, and each cell is judged as if it were alone.
        alone = Rig(folder, session_ttl_ms=fault_cells.TTL_MS, module="tests.faults.no_brake")
        with Nodes(folder) if three_nodes else alone as rig:
            service = Child.launch("service", command, folder=folder, inside=ROOT)
            try:
                await asyncio.to_thread(rig.start_nodes if isinstance(rig, Nodes) else rig.start_server)
                await asyncio.to_thread(service.wait_until_ready)
                async with AsyncClient(rig.address, timeout_s=30) as client:
                    mark = Definition(MARK)
                    mark.step("never", queue=NOBODY)
                    await client.apply_definition(mark)
                    yield cls(rig, client, service, ledger)
            finally:
                await asyncio.to_thread(stop_all, list(rig.agents.values()), STOP_S_MAX)
                service.stop()

    async def agent(self, name: str, queue: str, *, supervised: bool = False) -> Child:
        """An agent of a queue that is connected; nothing starts it again, unless it is supervised."""
        before = await self._sessions(queue)
        entry = "import sys; from stepward.client.cli import main; sys.exit(main())"
        how = ["-c", entry, "agent", "run"] if supervised else ["-m", "stepward.agents.worker"]
        command = [sys.executable, *how, AGENT, "--server", self.rig.address, "--queue", queue]
        child = Child.launch(name, command, folder=self.rig.folder, inside=ROOT)
        self.rig.agents[name] = child
        await self.connected(queue, 1, besides=before)
        return child

    async def connected(self, queue: str, count: int, *, besides: frozenset[str] = frozenset()) -> None:
        """Wait until so many agents of a queue are connected, not counting some sessions.

        One that was killed a moment ago may still be among those: its node has not told the others yet.

        Raises:
            AssertionError: They were not, in time.
        """
        ends_at = time.monotonic() + BEGUN_S_MAX
        while (there := len(await self._sessions(queue) - besides)) < count:
            assert time.monotonic() < ends_at, f"{there} of {count} agents of {queue} are connected"
            await asyncio.sleep(LOOK_EVERY_S * 5)

    async def _sessions(self, queue: str) -> frozenset[str]:
        agents = [agent async for agent in self.client.agents() if agent.queue == queue and agent.connected]
        return frozenset(agent.session_id for agent in agents)

    async def dismiss(self, *children: Child) -> None:
        """End agents that have played their part."""
        await asyncio.to_thread(stop_all, children, STOP_S_MAX)

    async def define(self, cells: Iterable[Cell]) -> None:
        """Say what the jobs of cells are."""
        for cell in cells:
            await self.client.apply_definition(definition(cell))

    async def submit(self, cells: Iterable[Cell]) -> dict[Cell, str]:
        """Submit the job of each cell, which is defined."""
        jobs = {}
        for cell in cells:
            submitted = await self.client.submit(cell.id, msgspec.to_builtins(self.plan(cell)))
            jobs[cell] = submitted.job_id
        return jobs

    async def holder(self, fault: Fault) -> Plan:
        """Have a handler that is about to hold the interpreter of its agent for a while; returns its plan.

        The cluster knows that it has begun, or the next attempt would count as its first and hold another agent.
        """
        plan = replace(self.plan(Cell(fault, Kind.REPEATABLE)), kind="holder", trouble="hold-a-while")
        holder = Definition(f"{fault}-holder")
        holder.step(STEP, action="do-on-thread", queue=fault)
        await self.client.apply_definition(holder)
        submitted = await self.client.submit(holder.name, msgspec.to_builtins(plan))
        await until(plan.began.exists, seconds_max=BEGUN_S_MAX, what=f"{plan.began} is there")
        await self.event(submitted.job_id, "StepStarted")
        return plan

    def plan(self, cell: Cell) -> Plan:
        """What the handlers of a cell are told."""
        return Plan(
            service=self._service.address,
            folder=str(self.rig.folder),
            fault=cell.fault,
            kind=cell.kind,
            part="undo" if cell.kind is Kind.UNDOING else "action",
            keyed=cell.kind in (Kind.REPEATABLE, Kind.UNDOING),
            trouble=cell.given.trouble,
            wish=cell.given.wish,
        )

    async def begun(self, jobs: dict[Cell, str]) -> None:
        """Wait until every handler has done its deed and is where the fault is to hit it, and the cluster knows."""
        paths = [self.plan(cell).began for cell in jobs]
        await until(lambda: all(path.exists() for path in paths), seconds_max=BEGUN_S_MAX, what=f"{paths} are there")
        for cell, job_id in jobs.items():
            await self.event(job_id, "UndoStarted" if cell.kind is Kind.UNDOING else "StepStarted")

    async def mark(self) -> Began:
        """The clocks of the cluster, as of now. The caller says how much later the fault really began."""
        submitted = await self.client.submit(MARK)
        first = (await self.history(submitted.job_id))[0]
        return Began(at_ms=first.at_ms, led_ms=first.led_ms, log_ms=first.log_ms)

    async def history(self, job_id: str) -> tuple[Event, ...]:
        """All events of a job."""
        return tuple([_event(event) async for event in self.client.history(job_id)])

    async def event(self, job_id: str, *types: str, seconds_max: float = SETTLED_S_MAX) -> Event:
        """Wait until one of such events of the deed is in the history of a job; returns the first.

        Raises:
            AssertionError: There was none in time.
        """
        ends_at = time.monotonic() + seconds_max
        while True:
            history = await self.history(job_id)
            for event in history:
                if event.type in types and event.step_id == STEP:
                    return event
            said = [event.type for event in history]
            assert time.monotonic() < ends_at, f"{job_id} has none of {types} after {seconds_max:.0f} s: {said}"
            await asyncio.sleep(LOOK_EVERY_S * 5)

    async def settled(self, jobs: dict[Cell, str]) -> None:
        """Wait until every job has ended or waits for a person.

        Raises:
            AssertionError: One had not in time.
        """
        for cell, job_id in jobs.items():
            try:
                await self.client.wait(job_id, wait_max_s=SETTLED_S_MAX, check=False)
            except WaitTimedOut:
                said = [f"{event.led_ms} {event.type} {event.detail}" for event in await self.history(job_id)]
                raise AssertionError(f"{cell.id} has not ended after {SETTLED_S_MAX:.0f} s: {said}") from None

    async def sighting(self, cell: Cell, job_id: str, began: Callable[[tuple[Event, ...]], Began]) -> Sighting:
        """All that is to be seen of a job now."""
        job = await self.client.get(job_id)
        history = await self.history(job_id)
        last = next(event for event in reversed(history) if event.type.startswith("Job"))
        return Sighting(
            cell=cell,
            job_id=job_id,
            history=history,
            step=str(job.step(STEP).state),
            job=str(job.state),
            entries=tuple(self.entries(job_id)),
            shown=tuple(plain(render_tree(job, datetime.now(UTC))).splitlines()),
            began=began(history),
            ended_at_ms=last.at_ms,
            ttl_ms=self.rig.session_ttl_ms,
        )

    def entries(self, job_id: str) -> list[Entry]:
        """What the service has recorded of a job."""
        return [entry for entry in read_as(self._ledger, Entry) if entry.call.job == job_id]


def _event(event: HistoryEvent) -> Event:
    assert event.at is not None
    return Event(
        type=event.type,
        step_id=event.step_id,
        at_ms=round(event.at.timestamp() * 1000),
        led_ms=event.led_time_ms,
        log_ms=event.log_time_ms,
        token=event.token,
        detail=event.detail,
    )
