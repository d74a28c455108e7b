"""After three leaderships without a supervisor nothing is remedied, until one has beaten for a good minute."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest

from stepward.client import AsyncClient, JobState
from stepward.client.incident_values import LedgerEntry, RemedyBy, Trouble
from stepward.server.core import epochs
from stepward.v1 import cluster_service_pb2 as pb
from tests.agents.test_agent_live import serving
from tests.cluster.nodes import NODE_IDS, Nodes
from tests.cluster.rig import until
from tests.cluster.test_supervision_lost import (
    LATE_S,
    LOOK_S,
    S_MAX,
    STUCK_AFTER_S,
    Sightings,
    Works,
    all_stay,
    breakable,
    define,
    supervised,
    until_beats,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

STUCK = 10
GOOD_S = epochs.GOOD_MS / 1_000
# The supervisor that is begun in place begins within five seconds of the end of the fault, and beats at once. A beat
# that follows the good minute writes that down, and every node has it a moment later.
TRUSTED_S_MAX = GOOD_S + 5.0 + 1.0 + 2 * LATE_S


async def remedies(client: AsyncClient) -> list[LedgerEntry]:
    """What was done about steps whose time was over."""
    return [one async for one in client.ledger(page_size=1_000) if one.trouble is Trouble.START_TO_CLOSE]


async def trusted(nodes: Nodes) -> dict[str, pb.ShardStatus]:
    """Wait until no node says any more that leadership stays, and what all of them said then."""
    async with asyncio.timeout(TRUSTED_S_MAX + S_MAX):
        while True:
            statuses = await nodes.statuses()
            if len(statuses) == len(NODE_IDS) and not any(one.supervision.stays for one in statuses.values()):
                return statuses
            await asyncio.sleep(LOOK_S)


async def test_h086_supervisor_that_has_beaten_for_a_good_minute_remedies_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H086: what fell due while leadership stayed is remedied when it is trusted again, once, by the same leader."""
    works = Works()
    with breakable(tmp_path, "not-started", monkeypatch) as (nodes, path):
        async with nodes.client() as client, serving(works.agent, *nodes.addresses.values()):
            await define(client)
            await nodes.whole()
            await supervised(nodes)
            sightings = Sightings(nodes, client)
            async with sightings.watching():
                path.write_text("")
                await until(lambda: all_stay(sightings), seconds_max=S_MAX, what="leadership stays")
                beats = sightings.looks[-1].supervision.beats
                submitted = [(await client.submit("stuck")).job_id for _ in range(STUCK)]
                await until(lambda: len(works.tries) == STUCK, seconds_max=S_MAX, what="all are stuck")
                path.unlink()
                mended_at_s = time.monotonic()
                await until_beats(nodes, beats + 2 + int(STUCK_AFTER_S))
                # All of them are overdue by now, and a supervisor is at work that beats.
                early = await remedies(client)
                said_early = await nodes.statuses()
                after = await trusted(nodes)
                took_s = time.monotonic() - mended_at_s
                results = [await client.wait(job_id, wait_max_s=S_MAX) for job_id in submitted]
            done = await remedies(client)
            await supervised(nodes)

    assert early == []
    assert all(one.supervision.stays for one in said_early.values())
    assert GOOD_S <= took_s <= TRUSTED_S_MAX, took_s
    assert {one.supervision.epochs_lost for one in after.values()} == {0}
    # Leadership has stayed, from the fourth leader on.
    staying = {look.shard.epoch for look in sightings.looks if look.at_s >= mended_at_s}
    assert len(staying) == 1
    assert [result.state for result in results] == [JobState.COMPLETED] * STUCK
    assert Counter(one.job_id for one in done) == Counter(submitted)
    assert {(one.by, one.epoch) for one in done} == {(RemedyBy.SUPERVISOR, *staying)}
    assert set(works.tries.values()) == {2}
    print(f"trusted again {took_s:.1f} s after the fault had ended; {len(done)} remedies, none before")
