"""Two nodes that believe to lead at once, made on purpose, while the same steps wait for a remedy.

An agent that is at work is lost for good. In the moment in which the supervisor of a leader has decided what to do
about its steps, and before anybody else hears of that, the leader is cut off, and whatever would tell it that it leads
no more is held back: its count of a majority stays fresh, its disk is never slow, and what others say does not come
through. So it goes on believing while the others elect another, whose supervisor finds the same steps overdue.

Half of the time only its role is held, and agents and callers can still reach it: whatever it told them too early
would be heard. Else its read lease is held, too; that lease is what keeps reads and renewals right, so nobody but the
node itself may then see what comes of it.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, TypeAlias
from unittest import mock

from stepward.server.core.ledger_rows import LedgerEntry
from stepward.server.core.parts import By, Part, Remedy
from stepward.server.logbook.contacts import LEASE_MS
from tests.simulation.agenda import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepward.server.core.rows import Row
    from stepward.server.logbook.raft import Raft
    from tests.simulation.agents import Agent
    from tests.simulation.process import Process
    from tests.simulation.world import World

# Job, step, part and token.
Attempt: TypeAlias = tuple[str, int, Part | None, int]

# These end no attempt.
NO_END: Final = frozenset({Remedy.RESEND, Remedy.WITHDRAW})
# Until a leader has to remedy what the lost agent had at work; one that had nothing is replaced by then.
_LOST_US_MAX: Final = 8 * SECOND
# Until another has been elected, has waited as long as it must, and wants the same.
_BELIEF_US_MAX: Final = 6 * SECOND
_LOOK_US: Final = 20 * MS
# As long as a message takes: some of what was decided then is known to one of the others.
_CUT_US: Final = (0, 0, 1 * MS, 3 * MS)


class Beliefs:
    """Loses agents, deceives leaders, and counts who wanted to remedy what."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(f"beliefs {world.seed}")
        self.counts: Counter[str] = Counter()
        # By attempt: the leaders whose supervisors wanted to remedy it, each a node and its epoch.
        self.wanted: defaultdict[Attempt, set[tuple[str, int]]] = defaultdict(set)
        self._storm = True
        self._lost: Agent | None = None
        self._lost_us = 0
        self._belief: _Belief | None = None

    def begin(self) -> None:
        """Lose an agent soon."""
        self._world.agenda.after(self._rng.uniform(100 * MS, 1_500 * MS), self._lose)

    def heal(self) -> None:
        """Nobody is deceived any more, and nobody stays lost."""
        self._storm = False
        self._end()

    def decided(self, process: Process, changes: Mapping[bytes, Row | None]) -> None:
        """A leader has decided a batch, of which nobody else knows yet."""
        entries = [row for row in changes.values() if isinstance(row, LedgerEntry)]
        wanted = [one for one in entries if one.by is By.SUPERVISOR and one.remedy not in NO_END]
        for one in wanted:
            attempt = (one.job_id, one.ordinal, one.part, one.evidence.token)
            self.wanted[attempt].add((process.name, one.epoch))
            if len(self.wanted[attempt]) == 2:
                self.counts["wanted by two leaders"] += 1
            if self._belief is not None and self._belief.is_shared_by(process):
                self._belief.shared |= attempt in self._belief.attempts
        if wanted and self._lost is not None and self._belief is None and self._storm:
            attempts = {(one.job_id, one.ordinal, one.part, one.evidence.token) for one in wanted}
            self._belief = _Belief(self._world, process, attempts, self._rng)
            self.counts["deceived"] += 1
            self._world.trace(process.name, "is deceived", f"lease {process.lease_is_held}")
            self._world.agenda.after(_LOOK_US, self._look)

    def _lose(self) -> None:
        if not self._storm:
            return
        at_work = [agent for agent in self._world.agents if agent.alive and agent.is_at_work]
        if not at_work:
            self._world.agenda.after(_LOOK_US, self._lose)
            return
        self._lost, self._lost_us = self._rng.choice(at_work), self._world.agenda.now_us
        self._world.trace("fault", "loses", self._lost.name)
        self._lost.lose()
        self._world.agenda.after(_LOOK_US, self._look)

    def _look(self) -> None:
        """Whether it is time to end what was begun."""
        if not self._storm or self._lost is None:
            return
        now_us = self._world.agenda.now_us
        if self._belief is None:
            over = now_us - self._lost_us > _LOST_US_MAX
        else:
            self._belief.go_on()
            over = self._belief.is_over
        if over:
            self._end()
            self.begin()
        else:
            self._world.agenda.after(_LOOK_US, self._look)

    def _end(self) -> None:
        if self._belief is not None:
            self.counts["shared"] += self._belief.shared
            self._belief.end()
            self._belief = None
        if self._lost is not None:
            lost, self._lost = self._lost, None
            lost.come_back()


class _Belief:
    """One leader that goes on believing."""

    def __init__(self, world: World, process: Process, attempts: set[Attempt], rng: random.Random) -> None:
        self._world = world
        self.process = process
        self.attempts = attempts
        # Whether the supervisor of another leader has wanted to remedy one of the same.
        self.shared = False
        self._epoch = process.standing.epoch
        self._until_us = world.agenda.now_us + _BELIEF_US_MAX
        # Goes on for a while when both have wanted the same.
        self._longer_us = int(rng.uniform(0, 1 * SECOND))
        self._is_heard_at_the_end = rng.random() < 0.5
        self._ended = False
        self._held = ExitStack()
        process.lease_is_held = self._lease_is_held = rng.random() < 0.5
        others = process.peers
        if self._lease_is_held:
            others += [one.name for one in world.agents] + [one.name for one in world.clients]
        self._ways_in = [(other, process.name) for other in others]
        self._ways_out = [(process.name, other) for other in others]
        self._hold(process)
        for way in self._ways_in:
            world.network.part(*way)
        world.agenda.after(rng.choice(_CUT_US), self._cut_out)

    def _cut_out(self) -> None:
        if self._ended:
            return
        for way in self._ways_out:
            self._world.network.part(*way)

    def _hold(self, process: Process) -> None:
        """Nothing in the process itself tells it that it leads no more."""
        engine = process.replica._engine
        raft, tick = engine._raft, engine._raft.tick

        def with_a_majority(*, stand: bool) -> None:
            _hear_from_all(raft)
            tick(stand=stand)

        def for_ever() -> int:
            return raft.now_ms + LEASE_MS

        self._held.enter_context(mock.patch.object(raft, "tick", with_a_majority))
        self._held.enter_context(mock.patch.object(process.replica, "_leave_leadership"))
        if self._lease_is_held:
            contacts = engine._contacts
            self._held.enter_context(mock.patch.object(contacts, "majority_is_fresh", return_value=True))
            self._held.enter_context(mock.patch.object(contacts, "lease_until_ms", for_ever))

    def go_on(self) -> None:
        """When another leads, what this one says may come through; what it is told does not."""
        if self._is_heard_at_the_end and self._another_leads and not self._lease_is_held:
            self._join_out()
        if self.shared:
            self._until_us = min(self._until_us, self._world.agenda.now_us + self._longer_us)

    @property
    def _another_leads(self) -> bool:
        processes = [machine.process for machine in self._world.machines.values()]
        return any(one and one.leads and one.standing.epoch > self._epoch for one in processes)

    def is_shared_by(self, other: Process) -> bool:
        """Whether both decide at this moment."""
        return other is not self.process and self.process.leads and not self.process.dead

    @property
    def is_over(self) -> bool:
        """Whether it has lasted as long as it may, or there is nobody to believe."""
        return self._world.agenda.now_us > self._until_us or self.process.dead

    def _join_out(self) -> None:
        for way in self._ways_out:
            self._world.network.join(*way)

    def end(self) -> None:
        """It hears how things are."""
        self._ended = True
        self._held.close()
        self._join_out()
        for way in self._ways_in:
            self._world.network.join(*way)
        self.process.lease_is_held = False


def _hear_from_all(raft: Raft) -> None:
    """Every follower is as if it had answered just now."""
    answered = raft._held._SyncObj__lastResponseTime
    for member in raft._members.values():
        answered[member] = raft.now_ms / 1_000
