"""What those who follow a job are told, over random histories: exactly what happened, in order, once."""

from __future__ import annotations

import random
from collections import Counter
from typing import NamedTuple

import pytest
from typing_extensions import override

from stepward.client.watching import Watch
from stepward.server.api import history, job_steps, watch
from stepward.server.api.watch import Following
from stepward.server.core import keys, rows
from stepward.server.core.rejections import Reason, Refused
from stepward.server.core.rows import JOB_STATES_FINAL, StepState
from stepward.server.reading import Reading
from stepward.server.store.live import CommittedRows
from stepward.v1 import job_service_pb2
from tests.core.test_histories import History
from tests.core.world import World

Response = job_service_pb2.WatchJobResponse


class WorldRows(CommittedRows):
    """The rows of a world, whose head is made from its clock."""

    def __init__(self, world: World) -> None:
        super().__init__(world.store)
        self._world = world

    @override
    def head(self) -> rows.Head:
        world = self._world
        return rows.Head(world.sequence, b"", 1, 0, world.now_ms, world.now_ms, world.now_ms, 0, "")


def reading(world: World) -> Reading:
    """As a call reads."""
    return Reading(WorldRows(world), {})


class Event(NamedTuple):
    """What makes an event this one and no other."""

    revision: int
    type: str
    step_id: str
    token: int
    detail: str


def happened(world: World, job_id: str) -> list[Event]:
    """All events of a job, by reading its whole history."""
    page = history.page(reading(world), job_id, at=history.START, count_max=1_000_000)
    assert page is not None
    assert page.next is None
    return [Event(e.revision, e.type, e.step_id, e.token, e.detail) for e in page.events]


class Follower:
    """Somebody who follows a job, loses his stream now and then, and resumes."""

    def __init__(self, world: World, job_id: str, rng: random.Random) -> None:
        self.job_id = job_id
        self.told: list[Event] = []
        self.steps: dict[str, int] = {}
        self.counts: dict[int, int] = {}
        self.resumed = 0
        self.job_is_gone = False
        """Whether he was told that it is there no more: it had ended, and its retention is over."""
        self._world = world
        self._rng = rng
        self._stream = Following(job_id, 0, world.limits)

    def look(self, *, to_the_end: bool = False) -> None:
        """Take what there is, or a part of it; perhaps lose the stream."""
        self.job_is_gone = self._world.reader.get(keys.job(self.job_id)) is None
        if self.job_is_gone:
            with pytest.raises(Refused) as refused:
                self._stream.news(reading(self._world))
            assert refused.value.rejection.reason is Reason.JOB_NOT_FOUND
            return
        while True:
            news = self._stream.news(reading(self._world))
            if news.message is not None:
                self.take(news.message)
            if not news.more:
                break
            if not to_the_end and self._rng.random() < 0.4:
                break
        if not to_the_end and self._rng.random() < 0.3:
            self.resumed += 1
            self._stream = Following(self.job_id, self.resume(), self._world.limits)

    def take(self, message: Response) -> None:
        """One response."""
        self.steps |= {step.step_id: step.state for step in message.job.steps}
        self.counts = {one.state: one.count for one in message.job.step_counts}

    def resume(self) -> int:
        """Behind which revision."""
        raise NotImplementedError


class ByRevision(Follower):
    """One who resumes by the contract alone: behind the revision of the job that he saw last."""

    revision = 0

    @override
    def take(self, message: Response) -> None:
        super().take(message)
        self.told += [Event(e.revision, e.type, e.step_id, e.token, e.detail) for e in message.events]
        self.revision = message.job.revision

    @override
    def resume(self) -> int:
        # What he was told beyond that comes again.
        self.told = [event for event in self.told if event.revision <= self.revision]
        return self.revision


class ByClient(Follower):
    """One who lets our client count what comes again."""

    def __init__(self, world: World, job_id: str, rng: random.Random) -> None:
        super().__init__(world, job_id, rng)
        self._watch = Watch(job_id, 0)

    @override
    def take(self, message: Response) -> None:
        super().take(message)
        for change in self._watch.take(message):
            self.told += [Event(e.revision, e.type, e.step_id, e.token, e.detail) for e in change.events]

    @override
    def resume(self) -> int:
        return self._watch.request().from_revision


class Followed(History):
    """A random history whose jobs are followed."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.followers: list[Follower] = []
        self.chance = random.Random(seed)

    @override
    def _check(self) -> None:
        self._note_ends()
        followed = {follower.job_id for follower in self.followers}
        for job_id in self.jobs:
            if job_id not in followed and self.chance.random() < 0.2:
                self.followers += [
                    ByRevision(self.world, job_id, self.chance),
                    ByClient(self.world, job_id, self.chance),
                ]
        for follower in self.followers:
            if not follower.job_is_gone and self.chance.random() < 0.2:
                follower.look()

    def check_followers(self) -> Counter[str]:
        """What they were told, when they have looked for the last time."""
        for follower in self.followers:
            follower.look(to_the_end=True)
        there = [follower for follower in self.followers if not follower.job_is_gone]
        for follower in there:
            assert follower.told == happened(self.world, follower.job_id), (self.seed, follower.job_id)
            self._check_steps(follower)
        return Counter(
            ended=sum(self.world.progress(one.job_id).state in JOB_STATES_FINAL for one in there),
            gone=len(self.followers) - len(there),
            resumed=sum(one.resumed for one in self.followers),
            events=sum(len(f.told) for f in self.followers),
        )

    def _check_steps(self, follower: Follower) -> None:
        """Every step that has begun is known as it is, and all are counted."""
        states = [self._state(follower.job_id, ordinal) for ordinal in range(len(self.body.steps))]
        assert follower.counts == Counter(states), (self.seed, follower.job_id)
        for spec, state in zip(self.body.steps, states, strict=True):
            assert follower.steps.get(spec.id, StepState.PENDING) == state, (self.seed, follower.job_id, spec.id)

    def _state(self, job_id: str, ordinal: int) -> StepState:
        step = self.world.reader.get(keys.step(job_id, ordinal))
        assert step is None or isinstance(step, rows.Step)
        return job_steps.state_of(step)


@pytest.mark.parametrize("steps_max", [1_000, 2, 0])
@pytest.mark.parametrize("events_max", [1_000, 3, 1])
def test_followers_are_told_the_history(monkeypatch: pytest.MonkeyPatch, steps_max: int, events_max: int) -> None:
    """Without a gap or a repetition, however messages are cut, and whether or not they have room for all steps."""
    monkeypatch.setattr(job_steps, "STEPS_MAX", steps_max)
    monkeypatch.setattr(watch, "EVENTS_MAX", events_max)
    met = follow_histories(3, 3)

    assert min(met[what] for what in ("ended", "resumed", "events")) > 25, met
    assert met["gone"] > 5, met


@pytest.mark.slow
@pytest.mark.parametrize("steps_max", [1_000, 2, 0])
@pytest.mark.parametrize("events_max", [1_000, 3, 1])
def test_followers_of_many_histories(monkeypatch: pytest.MonkeyPatch, steps_max: int, events_max: int) -> None:
    """The same, for others."""
    monkeypatch.setattr(job_steps, "STEPS_MAX", steps_max)
    monkeypatch.setattr(watch, "EVENTS_MAX", events_max)
    follow_histories(100, 12)


def follow_histories(first: int, count: int) -> Counter[str]:
    """Run some histories whose jobs are followed, and add up what the followers met."""
    met: Counter[str] = Counter()
    for seed in range(first, first + count):
        followed = Followed(seed)
        followed.run()
        met += followed.check_followers()
    return met
