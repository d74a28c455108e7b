"""How each fault is made, and the run of many of them at a time."""

from __future__ import annotations

import asyncio
import os
import re
import traceback
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import psutil
from msgspec import Struct
from msgspec.structs import replace

from stepward.client import StepwardError
from stepward.client.demo.processes import Child, ChildError
from tests.cluster.fault_cells import TTL_MS, Bound, Cell, Fault, Kind
from tests.cluster.fault_sightings import Began, Event, Sighting
from tests.cluster.fault_stage import SETTLED_S_MAX, Stage, now_ms
from tests.cluster.rig import until

# Faults played at a time: each is mostly waiting, but its processes must start.
PLAYS_AT_ONCE = 6

# What hits every job of a node needs a node of its own.
ALONE = frozenset({Fault.SERVER_KILLED, Fault.SERVER_PAUSED, Fault.SERVER_KILLED_AT_WORK})

WORKER_ENDED = re.compile(r"the worker ended with code (\d+)")


class Run(Struct, frozen=True, kw_only=True):
    """What came of many faults: what was seen of each cell, and of faults that could not be played, why."""

    sightings: dict[str, Sighting]
    troubles: dict[str, str]


async def run(folder: Path, cells: Iterable[Cell]) -> Run:
    """Play the faults of these cells, all kinds of one fault together and some faults at a time."""
    by_fault: defaultdict[Fault, list[Cell]] = defaultdict(list)
    for cell in cells:
        by_fault[cell.fault].append(cell)
    gate = asyncio.Semaphore(PLAYS_AT_ONCE)
    sightings: dict[str, Sighting] = {}
    troubles: dict[str, str] = {}

    async def one(fault: Fault, stage: Stage) -> None:
        async with gate:
            try:
                if fault in ALONE:
                    async with Stage.opened(folder / fault) as own:
                        seen = await play(own, fault, by_fault[fault])
                else:
                    seen = await play(stage, fault, by_fault[fault])
            except (AssertionError, ChildError, StepwardError, OSError, TimeoutError, LookupError):
                troubles[fault] = traceback.format_exc()
            else:
                sightings.update({sighting.cell.id: sighting for sighting in seen})

    async with Stage.opened(folder / "shared") as stage:
        # In the order of the table the longest come first, but those that have a node of their own.
        order = sorted(by_fault, key=lambda fault: fault not in ALONE)
        await asyncio.gather(*(one(fault, stage) for fault in order))
    return Run(sightings=sightings, troubles=troubles)


async def play(stage: Stage, fault: Fault, cells: list[Cell]) -> list[Sighting]:
    """Make one fault in the steps of its cells and see what comes of it."""
    await stage.define(cells)
    match fault:
        case Fault.AGENT_KILLED | Fault.AGENTS_VANISH:
            return await _killed(stage, fault, cells)
        case Fault.AGENT_PAUSED:
            return await _paused(stage, fault, cells)
        case Fault.AGENT_BLOCKED:
            return await _blocked(stage, fault, cells)
        case Fault.AGENT_BLOCKED_BEFORE:
            return await _blocked_before(stage, fault, cells)
        case _ if fault in ALONE:
            return await _server_away(stage, fault, cells)
        case _:
            return await _by_itself(stage, fault, cells)


async def _killed(stage: Stage, fault: Fault, cells: list[Cell]) -> list[Sighting]:
    """Agents die. Another is there at once, or, when all have vanished, only after the loss was noticed."""
    all_ = fault is Fault.AGENTS_VANISH
    victims = [await stage.agent(f"{fault}-{number}", fault) for number in range(2 if all_ else 1)]
    jobs = await stage.submit(cells)
    await stage.begun(jobs)
    mark = await stage.mark()
    for victim in victims:
        victim.kill()
    began = replace(mark, slack_ms=now_ms() - mark.at_ms)
    if all_:
        await _lost(stage, jobs)
    rescuer = await stage.agent(f"{fault}-rescuer", fault)
    await stage.settled(jobs)
    seen = await _sightings(stage, jobs, began)
    await stage.dismiss(rescuer)
    return seen


async def _paused(stage: Stage, fault: Fault, cells: list[Cell]) -> list[Sighting]:
    """An agent stands still until others have finished its work, and then goes on as if nothing had happened."""
    victim = await stage.agent(f"{fault}-0", fault)
    jobs = await stage.submit(cells)
    await stage.begun(jobs)
    mark = await stage.mark()
    victim.pause()
    began = replace(mark, slack_ms=now_ms() - mark.at_ms)
    rescuer = await stage.agent(f"{fault}-rescuer", fault)
    await stage.settled(jobs)
    _release(stage, cells)
    victim.resume()
    for job_id in jobs.values():
        await stage.event(job_id, "StaleReportObserved")
    seen = await _sightings(stage, jobs, began)
    await stage.dismiss(rescuer, victim)
    return seen


async def _blocked(stage: Stage, fault: Fault, cells: list[Cell]) -> list[Sighting]:
    """A handler holds the interpreter of its agent until the loss was noticed, and then does not end by itself."""
    parent = await stage.agent(f"{fault}-0", fault, supervised=True)
    jobs = await stage.submit(cells)
    await stage.begun(jobs)
    pipe = stage.plan(cells[0]).pipe
    os.mkfifo(pipe)
    mark = await stage.mark()
    _release(stage, cells)
    # Handlers see the file within some milliseconds; until they hold the interpreter a heartbeat may still leave.
    began = replace(mark, slack_ms=now_ms() - mark.at_ms + 500)
    rescuer = await stage.agent(f"{fault}-rescuer", fault)
    await _lost(stage, jobs)
    handle = os.open(pipe, os.O_RDWR)
    os.write(handle, b"." * len(cells))
    try:
        await until(lambda: bool(_exit_codes(parent)), seconds_max=SETTLED_S_MAX, what="the worker has ended itself")
    finally:
        os.close(handle)
    await stage.settled(jobs)
    seen = await _sightings(stage, jobs, began)
    await stage.dismiss(rescuer, parent)
    return [replace(sighting, exit_codes=_exit_codes(parent)) for sighting in seen]


async def _blocked_before(stage: Stage, fault: Fault, cells: list[Cell]) -> list[Sighting]:
    """Steps are offered to an agent that has just been blocked; it goes on when others have done them."""
    victim = await stage.agent(f"{fault}-0", fault)
    undoing = await stage.submit([cell for cell in cells if cell.kind is Kind.UNDOING])
    for job_id in undoing.values():
        await stage.event(job_id, "StepSucceeded")
    plan = await stage.holder(fault)
    os.mkfifo(plan.pipe)
    mark = await stage.mark()
    plan.release.touch()
    await until(plan.held.exists, seconds_max=SETTLED_S_MAX, what="the interpreter is held")
    began = replace(mark, slack_ms=now_ms() - mark.at_ms)
    jobs = await stage.submit([cell for cell in cells if cell.kind is not Kind.UNDOING])
    for job_id in undoing.values():
        await stage.client.cancel(job_id, "so that it is undone")
    for cell, job_id in (jobs | undoing).items():
        await stage.event(
            job_id,
            "UndoOffered" if cell.kind is Kind.UNDOING else "StepOffered",
            seconds_max=stage.rig.session_ttl_ms / 1000,
        )
    rescuer = await stage.agent(f"{fault}-rescuer", fault)
    jobs |= undoing
    await stage.settled(jobs)
    handle = os.open(plan.pipe, os.O_RDWR)
    os.write(handle, b".")
    # Its session is over, so it is there again when it has said hello with a new one.
    await stage.connected(fault, 2)
    os.close(handle)
    seen = await _sightings(stage, jobs, began)
    await stage.dismiss(rescuer, victim)
    return [replace(sighting, blocked_pid=victim.pid) for sighting in seen]


async def _server_away(stage: Stage, fault: Fault, cells: list[Cell]) -> list[Sighting]:
    """The server is gone for longer than any lease. Handlers end meanwhile before their lease does, or are at work."""
    agent = await stage.agent(f"{fault}-0", fault)
    jobs = await stage.submit(cells)
    await stage.begun(jobs)
    server = stage.rig.server
    mark = await stage.mark()
    if fault is Fault.SERVER_PAUSED:
        server.pause()
        process = psutil.Process(server.pid)
        stopped = psutil.STATUS_STOPPED
        await until(lambda: process.status() == stopped, seconds_max=10, what="the server stands still")
    else:
        server.kill()
    away_from_ms = now_ms()
    began = replace(mark, slack_ms=away_from_ms - mark.at_ms)
    if fault is not Fault.SERVER_KILLED_AT_WORK:
        _release(stage, cells)
    ends_at_ms = away_from_ms + Bound.LEASE.ms(TTL_MS)
    await until(
        lambda: "lease_ended" in agent.log.read_text() and now_ms() >= ends_at_ms,
        seconds_max=SETTLED_S_MAX,
        what="every lease would have ended, had there been somebody to end it",
    )
    away_ms = (away_from_ms, now_ms())
    if fault is Fault.SERVER_PAUSED:
        server.resume()
    else:
        await asyncio.to_thread(stage.rig.start_server)
    back_at_ms = now_ms()
    await stage.settled(jobs)
    seen = await _sightings(stage, jobs, began)
    # For threads that still wait for it.
    _release(stage, cells)
    await stage.dismiss(agent)
    return [replace(sighting, away_ms=away_ms, back_at_ms=back_at_ms) for sighting in seen]


async def _by_itself(stage: Stage, fault: Fault, cells: list[Cell]) -> list[Sighting]:
    """What the handler, the service or the queue does wrong without our doing."""
    agent = await stage.agent(f"{fault}-0", fault)
    jobs = await stage.submit(cells)
    await stage.settled(jobs)
    seen = []
    for cell, job_id in jobs.items():
        if cell.given.bound in (Bound.START_TO_CLOSE, Bound.HEARTBEAT):
            await stage.event(job_id, "StepAttemptConfirmedStopped")
        seen.append(await stage.sighting(cell, job_id, partial(_began, stage, cell, job_id)))
    await stage.dismiss(agent)
    return seen


def _began(stage: Stage, cell: Cell, job_id: str, history: tuple[Event, ...]) -> Began:
    """When a fault began that nobody injected."""
    undoing = cell.kind is Kind.UNDOING
    match cell.given.begins:
        case "started":
            wanted = "UndoStarted" if undoing else "StepStarted"
        case "ready":
            wanted = "UndoReady" if undoing else "StepReady"
        case "told":
            return Began(at_ms=round(float(stage.plan(cell).began.read_text()) * 1000))
        case _:
            verb = "undo" if undoing else "do"
            entry = next((entry for entry in stage.entries(job_id) if entry.call.verb == verb), None)
            assert entry is not None, f"the service has no {verb} of job {job_id}, which is {cell.id}"
            return Began(at_ms=entry.at_ms)
    event = next((event for event in history if event.type == wanted), None)
    assert event is not None, f"job {job_id}, which is {cell.id}, has no {wanted}: {[e.type for e in history]}"
    return Began(at_ms=event.at_ms, led_ms=event.led_ms, log_ms=event.log_ms)


async def _lost(stage: Stage, jobs: dict[Cell, str]) -> None:
    for job_id in jobs.values():
        await stage.event(job_id, "StepAttemptLost", "UndoAttemptLost")


async def _sightings(stage: Stage, jobs: dict[Cell, str], began: Began) -> list[Sighting]:
    return [await stage.sighting(cell, job_id, lambda _: began) for cell, job_id in jobs.items()]


def _release(stage: Stage, cells: list[Cell]) -> None:
    stage.plan(cells[0]).release.touch()


def _exit_codes(parent: Child) -> tuple[int, ...]:
    return tuple(int(code) for code in WORKER_ENDED.findall(parent.log.read_text()))
