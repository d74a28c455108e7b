"""Jobs whose first attempt never ends by itself, so that a supervisor has to remedy it whatever befalls its leader."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from stepward.agents import Agent, Context
from stepward.client import AsyncClient, Definition, JobState, Retry, Timeouts
from stepward.client.incident_values import LedgerEntry, Remedy, RemedyBy, Trouble
from tests.cluster import remedy_witness
from tests.cluster.remedy_witness import Attempt
from tests.cluster.rig import until

DEFINITION: Final = "hurried"
STEP: Final = "hurry"
# How long an attempt may take: others lead soon after it is over, and its own leader still stands still.
OVERDUE_AFTER_S: Final = 0.6
# Two steps that end well for each that hangs: the breaker of the action stays closed.
CALM: Final = ("calm-1", "calm-2")
AT_ONCE: Final = 5
# Where the supervisor waits for an answer of an agent, nothing is over.
NO_END: Final = frozenset({Remedy.RESEND, Remedy.WITHDRAW})
END_S_MAX: Final = 60.0


class Hit(NamedTuple):
    """A leader that stood still: the jobs that hung meanwhile, and the epoch in which it led."""

    job_ids: list[str]
    epoch: int


class Hurried:
    """These jobs, and the agent that does them and remembers what it did under which token."""

    def __init__(self, client: AsyncClient, folder: Path) -> None:
        self._client = client
        self._folder = folder
        self.job_ids: list[str] = []
        self.executions: Counter[Attempt] = Counter()
        self._hung: set[str] = set()
        self.agent = Agent(queue=DEFINITION, slots=16 * AT_ONCE, name=DEFINITION, drain_timeout_seconds=1.0)
        self.agent.action(STEP)(self._hurry)

    async def _hurry(self, ctx: Context) -> None:
        self.executions[Attempt(ctx.job_id, ctx.step_id, ctx.token)] += 1
        if ctx.step_id == STEP and ctx.job_id not in self._hung:
            self._hung.add(ctx.job_id)
            await asyncio.Event().wait()

    async def define(self) -> None:
        """Let the cluster know these jobs."""
        definition = Definition(DEFINITION)
        for step_id in (STEP, *CALM):
            definition.step(
                step_id,
                action=STEP,
                queue=DEFINITION,
                needs=definition.sinks() or None,
                retry=Retry(attempts_max=20, initial=0.05),
                timeouts=Timeouts(start_to_close=OVERDUE_AFTER_S),
            )
        await self._client.apply_definition(definition)

    async def hang(self) -> list[str]:
        """Submit some, and wait until the first attempt of each is at work."""
        submitted = await asyncio.gather(*(self._client.submit(DEFINITION) for _ in range(AT_ONCE)))
        new_ids = [one.job_id for one in submitted]
        self.job_ids += new_ids
        await until(lambda: self._hung.issuperset(new_ids), seconds_max=END_S_MAX, what="all of them hang")
        return new_ids

    def stop_next_decider(self) -> None:
        """Let a leader stand still with the next remedy that it wants."""
        remedy_witness.stop_next(self._folder)

    async def decider_stopped(self) -> str:
        """Wait until it does; returns which."""
        found = []

        def one_stands_still() -> bool:
            if name := remedy_witness.stopped(self._folder):
                found.append(name)
            return bool(found)

        await until(one_stands_still, seconds_max=END_S_MAX, what="a leader wants to remedy something")
        return found[0]

    async def remedied_by_another(self, node_id: str, job_ids: list[str]) -> None:
        """Wait until another node has wanted to remedy one of these jobs."""

        def by_another() -> bool:
            wants = remedy_witness.wanted(self._folder).items()
            return any(one.job_id in job_ids and {name for name, _ in leaders} - {node_id} for one, leaders in wants)

        await until(by_another, seconds_max=END_S_MAX, what=f"another than {node_id} remedies something")

    async def judged(self, hits: list[Hit]) -> str:
        """Wait until all have ended, and hold the ledger and what was executed against each other.

        Args:
            hits: Of leaders.

        Raises:
            AssertionError: One has not ended well, or there are `breaches`.
        """
        ended = await asyncio.gather(*(self._client.wait(one, wait_max_s=END_S_MAX) for one in self.job_ids))
        entries = [entry async for entry in self._client.ledger(page_size=1_000)]
        wants = remedy_witness.wanted(self._folder)

        assert {one.state for one in ended} == {JobState.COMPLETED}
        assert breaches(entries, wants, self.executions, self.job_ids) == []
        return _figures([one for one in entries if _is_end(one)], wants, hits)


def _is_end(entry: LedgerEntry) -> bool:
    """Whether a supervisor has ended an attempt by this."""
    return entry.by is RemedyBy.SUPERVISOR and entry.remedy not in NO_END


def breaches(
    entries: Sequence[LedgerEntry],
    wants: Mapping[Attempt, set[tuple[str, int]]],
    executions: Mapping[Attempt, int],
    hung: Collection[str],
) -> list[str]:
    """What is wrong with a ledger, given what supervisors wanted, how often each attempt was executed and who hung."""
    ends = [one for one in entries if _is_end(one)]
    remedied = Counter(Attempt(one.job_id, one.step_id, one.token) for one in ends)
    found = []
    if sorted(one.serial for one in entries) != list(range(1, len(entries) + 1)):
        found.append(f"the serials have gaps or repeat: {sorted(one.serial for one in entries)}")
    found += [f"{attempt} was remedied {count} times" for attempt, count in remedied.items() if count > 1]
    found += [f"{attempt} was remedied, and no supervisor wanted that" for attempt in remedied.keys() - wants.keys()]
    # Those hang for ever, so that none can end without.
    saved = {one.job_id for one in ends if one.step_id == STEP}
    found += [f"{job_id} hung and was never remedied" for job_id in hung if job_id not in saved]
    found += [f"{attempt} was executed {count} times" for attempt, count in executions.items() if count > 1]
    # It may be fewer: an offer that was lost on the way is remedied, too.
    tries = Counter((attempt.job_id, attempt.step_id) for attempt in executions)
    remedies = Counter((one.job_id, one.step_id) for one in entries if one.remedy not in NO_END)
    for step, count in tries.items():
        if count > 1 + remedies[step]:
            found.append(f"{step} was executed under {count} tokens, after {remedies[step]} remedies")
    return found


def _figures(ends: list[LedgerEntry], wants: dict[Attempt, set[tuple[str, int]]], hits: list[Hit]) -> str:
    """What supervisors did and wanted, and after how many hits two leaders wanted the same."""
    epochs = {job_id: hit.epoch for hit in hits for job_id in hit.job_ids}
    by_next = {one.job_id for one in ends if one.epoch > epochs.get(one.job_id, one.epoch)}
    by_two = {attempt.job_id for attempt, leaders in wants.items() if len(leaders) > 1}
    hits_next = sum(not by_next.isdisjoint(hit.job_ids) for hit in hits)
    hits_two = sum(not by_two.isdisjoint(hit.job_ids) for hit in hits)
    assert not hits or hits_next > 0, "no step was remedied by the leader after the one that stood still"
    troubles = Counter(one.trouble for one in ends)
    told = ", ".join(f"{Trouble(trouble).name} {count}" for trouble, count in sorted(troubles.items()))
    return (
        f"{len(ends)} remedies ({told}), none twice; after {hits_next} of {len(hits)} hits by the next leader, "
        f"after {hits_two} wanted by two leaders"
    )
