"""What renewals cost the rules when very many sessions are open."""

from __future__ import annotations

import random
import time

import pytest

from stepward.server.core.commands import RenewSession, SessionRenewed
from stepward.server.core.limits import Limits
from tests.core.crew import counted
from tests.core.test_sessions import hello
from tests.core.world import World

SESSIONS = 10_000
TTL_MS = 10_000
# What heartbeats gather for (`gather_renewals_ms`): each batch has those of so long.
GATHERED_MS = 50
# Of one processor. It takes about a twentieth; a rule that looked at every session would take many processors.
SHARE_MAX = 0.5


@pytest.mark.slow
def test_renewals_of_ten_thousand_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs its own row, read once and written once, whatever else is open; one from each comes every TTL/3."""
    world = World(limits=Limits(session_ttl_ms=TTL_MS, sessions_max=SESSIONS))
    sessions = [f"session-{number}" for number in range(SESSIONS)]
    for first in range(0, SESSIONS, 1_000):
        world.do(*(hello(session_id) for session_id in sessions[first : first + 1_000]))
    random.Random(1).shuffle(sessions)
    rounds = TTL_MS // 3 // GATHERED_MS
    batch = -(-SESSIONS // rounds)
    renewals = [RenewSession(session_id, 1, 0) for session_id in sessions]
    world.now_ms += TTL_MS // 3

    with counted(monkeypatch) as cost:
        answers = world.do(*renewals[:batch])
    assert {type(answer) for answer in answers} == {SessionRenewed}
    assert (cost.gets, cost.puts) == (batch, batch)
    began = time.process_time()
    for first in range(batch, SESSIONS, batch):
        world.now_ms += GATHERED_MS
        world.do(*renewals[first : first + batch])
    took_ms = (time.process_time() - began) * 1_000

    share = took_ms / (TTL_MS / 3)
    print(f"{SESSIONS} sessions: {share:.1%} of a processor to decide and apply their renewals")
    assert share <= SHARE_MAX
