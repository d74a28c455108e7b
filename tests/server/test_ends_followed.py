"""What callers are told of the ends of their jobs, over random histories: each end once, whatever breaks between."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from typing_extensions import override

from stepward.server.api import ends_watch
from stepward.server.api.ends_watch import EndsFollowed
from stepward.server.core import caller_ends, keys, rows
from stepward.server.core.rejections import Reason, Refused
from stepward.server.core.rows import JOB_STATES_AWAITED, JOB_STATES_FINAL
from tests.core.test_histories import CALLERS, History
from tests.core.test_retention import sweep, world_of
from tests.core.world import DAY_MS, World
from tests.server.test_following import reading


class Caller:
    """Somebody who follows the ends of his jobs, loses his stream now and then, and resumes by the contract alone."""

    def __init__(self, world: World, caller_id: str, rng: random.Random) -> None:
        self.caller_id = caller_id
        self.told: list[tuple[str, int]] = []
        self.resumed = 0
        self._beyond: list[tuple[str, int]] = []
        self._world = world
        self._rng = rng
        self.begin()

    def begin(self) -> None:
        """From now on."""
        self.since = self.place = self._world.sequence
        self.told.clear()
        self._beyond.clear()
        self._stream = EndsFollowed(self.caller_id, self.place, self._world.limits)

    def look(self, *, to_the_end: bool = False) -> None:
        """Take what there is, or a part of it; perhaps lose the stream."""
        while self._take() and (to_the_end or self._rng.random() < 0.6):
            pass
        if not to_the_end and self._rng.random() < 0.3:
            self.resumed += 1
            # What was told beyond the place comes again.
            self._beyond.clear()
            self._stream = EndsFollowed(self.caller_id, self.place, self._world.limits)

    def _take(self) -> bool:
        """One message. Whether more follows at once."""
        if caller_ends.gone_sequence(self._world.reader) > self.place:
            with pytest.raises(Refused) as refused:
                self._stream.news(reading(self._world))
            assert refused.value.rejection.reason is Reason.REVISION_COMPACTED
            self.begin()
            return False
        message = self._stream.news(reading(self._world))
        for job in message.jobs:
            assert job.state in set(map(int, JOB_STATES_AWAITED))
            if job.state in set(map(int, JOB_STATES_FINAL)):
                self._beyond.append((job.job_id, job.state))
        (revision,) = message.revisions
        assert revision.revision >= self.place
        if revision.revision > self.place:
            self.place = revision.revision
            if not self._stream.has_more or not message.jobs:
                self.told += self._beyond
                self._beyond.clear()
            else:
                self._settle()
        return self._stream.has_more

    def _settle(self) -> None:
        """Of what was told, only what lies up to the place is surely not told again."""
        for one in list(self._beyond):
            progress = self._world.reader.get(keys.progress(one[0]))
            assert isinstance(progress, rows.Progress)
            if progress.told_sequence <= self.place:
                self._beyond.remove(one)
                self.told.append(one)


class Told(History):
    """A random history with callers, and what ended for each of them."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.chance = random.Random(seed)
        self.callers = [Caller(self.world, caller_id, self.chance) for caller_id in CALLERS[1:]]
        self.ends: list[tuple[int, str, str, int]] = []
        self._seen: set[str] = set()

    @override
    def _check(self) -> None:
        self._note_ends()
        self._note_callers()
        for caller in self.callers:
            if self.chance.random() < 0.2:
                caller.look()

    def _note_callers(self) -> None:
        for job_id, state in self.ended.items():
            if job_id not in self._seen:
                self._seen.add(job_id)
                job = self.world.reader.get(keys.job(job_id))
                assert isinstance(job, rows.Job)
                self.ends.append((self.world.sequence, job.caller_id, job_id, int(state)))

    def check_callers(self) -> Counter[str]:
        """What they were told, when they have looked for the last time."""
        self._note_ends()
        self._note_callers()
        for caller in self.callers:
            caller.look(to_the_end=True)
            due = [
                (job_id, state) for at, who, job_id, state in self.ends if who == caller.caller_id and at > caller.since
            ]
            assert Counter(caller.told) == Counter(due), (self.seed, caller.caller_id)
        return Counter(
            told=sum(len(caller.told) for caller in self.callers),
            resumed=sum(caller.resumed for caller in self.callers),
        )


@pytest.mark.parametrize("ends_max", [1_000, 1])
def test_callers_are_told_each_end_once(monkeypatch: pytest.MonkeyPatch, ends_max: int) -> None:
    """However messages are cut, and wherever streams break."""
    monkeypatch.setattr(ends_watch, "ENDS_MAX", ends_max)
    met: Counter[str] = Counter()
    for seed in range(6):
        told = Told(seed)
        told.run()
        met += told.check_callers()

    assert met["told"] > 10, met
    assert met["resumed"] > 20, met


def test_a_place_behind_everything_is_told_with_an_empty_message() -> None:
    """It moves on with the rows, though nothing ended."""
    world = World()
    stream = EndsFollowed("ann", 0, world.limits)
    first = stream.news(reading(world))
    world.sequence = 7
    second = stream.news(reading(world))

    assert [one.revision for one in first.revisions] == [0]
    assert [one.revision for one in second.revisions] == [7]
    assert [*first.jobs, *second.jobs] == []
    assert not stream.has_more


@pytest.mark.parametrize(("behind", "refused"), [(-1, True), (0, False)])
def test_whoever_comes_from_before_what_is_gone_is_refused(behind: int, refused: bool) -> None:
    """Since something may be missing; from the newest that is gone on nothing is."""
    world, crew = world_of()
    world.submit("j1", "single", caller="ann")
    crew.work("j1")
    ended_at = world.sequence
    world.now_ms += DAY_MS
    sweep(world)
    stream = EndsFollowed("ann", ended_at + behind, world.limits)

    if refused:
        with pytest.raises(Refused) as caught:
            stream.news(reading(world))
        assert caught.value.rejection.reason is Reason.REVISION_COMPACTED
        assert caught.value.rejection.metadata == {"gone_revision": str(ended_at)}
    else:
        assert not stream.news(reading(world)).jobs
