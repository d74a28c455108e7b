"""Rows as they are on a node, and how old it says that they may be: the shipped judge of that, in simulated time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from stepward.server.config import NodeConfig
from stepward.server.core.rejections import Reason, Rejection
from stepward.server.peers.errands import Ahead
from stepward.server.peers.forwarding import FRESHNESS_MS
from stepward.server.peers.readers import Readers
from tests.simulation.agenda import MS
from tests.simulation.clocks import WALL_ERROR_MS
from tests.simulation.forwarding import job_of

if TYPE_CHECKING:
    from tests.simulation.process import Process

_CONFIG: Final = NodeConfig(data=Path())


class Freshness:
    """What one process knows of the age of its rows. While it follows it asks the leader now and then."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._ahead = Ahead()
        self._readers = Readers(
            cast("Any", process),
            self._ahead,
            clock=process.clock,
            config=_CONFIG,
            no_leader=_nobody_waits,
            shut=lambda: None,
            behind=_nobody_waits,
            wake=lambda: None,
        )
        process.agenda.after(process.rng.uniform(0, FRESHNESS_MS * MS), process.when_awake, self._ask)

    def _ask(self) -> None:
        process = self._process
        if not process.leads:
            process.forwarding.ask()
        process.agenda.after(FRESHNESS_MS * MS, process.when_awake, self._ask)

    def told(self, sequence: int, asked_at_ms: int) -> None:
        """Whoever leads has said what the newest batch was after it was asked."""
        self._readers.answered((), sequence, asked_at_ms)

    def stepped(self) -> None:
        """A step is over."""
        standing, now_ms = self._process.standing, self._process.clock.steady_ms()
        self._readers.stepped(standing, now_ms)
        self._ahead.release(standing.head.sequence)
        self._ahead.expire(now_ms)

    def look(self, job_id: str) -> tuple[str, str] | None:
        """What a job is as far as is known here; None when nothing is, which is for others to tell."""
        process = self._process
        age_ms = self._readers.staleness_ms
        with process.committed() as reader:
            found = job_of(reader, job_id)
        if not found[1]:
            return None
        # Before anybody has told it anything, its word is as good as wall clocks are.
        is_told = self._readers._fresh_at_ms > 0
        if is_told or not process.oracle.walls_jumped:
            error_ms = 0 if is_told else WALL_ERROR_MS
            process.oracle.looked(process.name, process.standing.head.sequence, age_ms=age_ms, error_ms=error_ms)
        return found


def _nobody_waits() -> Rejection:
    return Rejection(Reason.NO_LEADER, "nobody waits here for an answer")
