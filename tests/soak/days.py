"""Bad days: services that fail, agents that are slow, crash, freeze or are cut off, many of them at once, and restarts.

Every moment of it follows from the seed. Each part of the weather comes and goes by itself.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from stepward.server.core import keys, rows
from stepward.server.core.commands import TerminateJob
from stepward.server.core.limits import Limits
from stepward.server.core.rows import JobState
from tests.core.world import WALL_MS, actions_of
from tests.simulation.agenda import MS, SECOND, Agenda
from tests.soak.agents import Agent, Gateway, Weather
from tests.soak.jobs import DEFINITIONS, RARE, RARE_ACTIONS
from tests.soak.judge import Judge
from tests.soak.shard import Shard

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.soak.shard import Decided

AGENTS: Final = 24
SLOTS: Final = 14
# About as many jobs as agents can do, so that most slots are taken.
_SUBMIT_MS: Final = 330


class Days:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.agenda = Agenda()
        self._rng = random.Random(f"days {seed}")
        # Breakers, which have tests of their own, would keep storms of services away from the supervisor.
        limits = Limits(retention_ms=60_000, ledger_retention_ms=60_000, breaker_outcomes_min=1_000_000)
        self.shard = Shard(self.agenda, limits=limits, seed=seed)
        self.weather = Weather()
        self.agents: list[Agent] = []
        self.judge = Judge(self.shard, self.agents)
        self.gateway = Gateway(self.shard)
        self.gateway.agents = self.agents
        self.shard.onlookers.append(self)
        self.jobs = 0
        self.done: dict[str, int] = {}
        for body in DEFINITIONS:
            self.shard.define(body)
        common = tuple(action for body in DEFINITIONS for action in actions_of(body) if action not in RARE_ACTIONS)
        for number in range(AGENTS):
            # One in six offers the rare action, too; all of these may be away at once.
            actions = (*common, *RARE_ACTIONS) if number % 6 == 0 else common
            agent = Agent(self.shard, f"a{number:02d}", actions, slots=SLOTS, weather=self.weather)
            self.agents.append(agent)
        self.shard.begin()

    def run(self, seconds: int) -> None:
        """Let it be bad for so long."""
        rng = self._rng
        self._submit()
        for act, every_s in (
            (self._crash, 9),
            (self._freeze, 11),
            (self._cut, 17),
            (self._storm, 60),
            (self._slow, 75),
            (self._hang, 55),
            (self._standstill, 420),
            (self._loss, 90),
            (self._restart, 70),
            (self._long_restart, 400),
            (self._rare_away, 60),
        ):
            self._again(act, every_s, rng.uniform(0.2, 1.0) * every_s)
        self.agenda.run_until(self.agenda.now_us + seconds * SECOND)

    def _again(self, act: Callable[[], None], every_s: float, in_s: float) -> None:
        def now() -> None:
            act()
            self._again(act, every_s, self._rng.uniform(0.4, 1.6) * every_s)

        self.agenda.after(in_s * SECOND, now)

    def _later(self, seconds: float, act: Callable[..., None], *arguments: object) -> None:
        self.agenda.after(seconds * SECOND, act, *arguments)

    def _submit(self) -> None:
        self.agenda.after(self._rng.uniform(0.3, 1.7) * _SUBMIT_MS * MS, self._submit)
        body = self._rng.choices(DEFINITIONS, [5, 4, 2])[0]
        self.jobs += 1
        # The time of its submission, and a number.
        job_id = f"0-{WALL_MS + self.shard.steady_ms:012x}7{self.jobs:019x}"
        self.shard.send(self.shard.submission(job_id, body.name), lambda _: None)

    def decided(self, decided: Decided) -> None:
        """What waits for a person is given up by one, some time later."""
        for key, row in decided.changes.items():
            if isinstance(row, rows.Progress) and row.state is JobState.ESCALATED:
                self._later(self._rng.uniform(1, 20), self._give_up, keys.progress_job_id(key))

    def _give_up(self, job_id: str) -> None:
        self.shard.send(TerminateJob(job_id, "nobody wants it any more", "ada"), lambda _: None)

    # Troubles.

    def _count(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1

    def _well(self) -> list[Agent]:
        return [agent for agent in self.agents if agent.alive and not agent.silent]

    def _some(self) -> Agent | None:
        well = self._well()
        return self._rng.choice(well) if well else None

    def _crash(self) -> None:
        if (agent := self._some()) is not None:
            self._count("crashed agents")
            agent.crash()
            self._later(self._rng.uniform(0.2, 30), agent.start)

    def _freeze(self) -> None:
        if (agent := self._some()) is not None:
            self._count("frozen agents")
            agent.fall_silent()
            self._later(self._rng.choice((self._rng.uniform(1, 9), self._rng.uniform(9, 40))), agent.speak)

    def _cut(self) -> None:
        """Several at once: a switch, not a machine."""
        self._count("cuts")
        seconds = self._rng.uniform(2, 25)
        for agent in self._rng.sample(self._well(), min(3, len(self._well()))):
            agent.fall_silent()
            self._later(seconds, agent.speak)

    def _storm(self) -> None:
        self._count("service storms")
        self.weather.failing = self._rng.uniform(0.3, 0.9)
        self._later(self._rng.uniform(5, 30), setattr, self.weather, "failing", 0.03)

    def _slow(self) -> None:
        self._count("slow times")
        self.weather.slow = self._rng.uniform(1.5, 4)
        self._later(self._rng.uniform(5, 30), setattr, self.weather, "slow", 1.0)

    def _hang(self) -> None:
        self._count("times of hanging")
        self.weather.hanging = self._rng.uniform(0.1, 0.6)
        self._later(self._rng.uniform(3, 15), setattr, self.weather, "hanging", 0.01)

    def _standstill(self) -> None:
        """Nothing that is begun comes to an end: all slots time out, and again: more than the brake lets through."""
        self._count("standstills")
        self.weather.hanging = 1.0
        self._later(self._rng.uniform(60, 90), setattr, self.weather, "hanging", 0.01)

    def _loss(self) -> None:
        """Most agents are gone at once, and come back within a while."""
        self._count("mass losses")
        well = self._well()
        lost = self._rng.sample(well, int(len(well) * self._rng.uniform(0.4, 1.0)))
        for agent in lost:
            agent.crash()
            self._later(self._rng.uniform(0.5, 25), agent.start)

    def _restart(self) -> None:
        self._count("restarts")
        self.shard.lead_no_more(int(self._rng.uniform(300, 5_000)))

    def _long_restart(self) -> None:
        self._count("long restarts")
        self.shard.lead_no_more(int(self._rng.uniform(10_000, 40_000)))

    def _rare_away(self) -> None:
        """Those who offer the rare action are away."""
        self._count("actions without agents")
        for agent in self.agents:
            if RARE.steps[0].action in agent.actions and agent.alive and not agent.silent:
                agent.crash()
                self._later(self._rng.uniform(20, 45), agent.start)
