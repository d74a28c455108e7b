"""How this node is, for those who look at it from other threads.

What another thread can read while the loop goes on is read when it is asked for. What only the loop may touch is noted
once a second, so a scrape never holds up a step, and a loop that hangs can still be looked at.
"""

from __future__ import annotations

import asyncio
import copy
from typing import TYPE_CHECKING, Final

from stepward.server import observe
from stepward.server.core import keys
from stepward.server.core.ledger_rows import LedgerEntry
from stepward.server.core.rows import Beat
from stepward.server.reading import changed
from stepward.server.store.errors import StoreFailed
from stepward.server.supervision_health import Findings, Verdict, find, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from stepward.server.clock import Clock
    from stepward.server.core.limits import Limits
    from stepward.server.logbook.identity import Identity
    from stepward.server.logbook.outbox import Applied, Condition, Standing
    from stepward.server.observe import Counters
    from stepward.server.shard import Shard

NOTE_S: Final = 1.0
# A node steps ten times a second when nothing happens. One that has not for so long hangs, or its disk does.
STEP_AGE_MS_MAX: Final = 5_000

_log = observe.logger("vitals")


class Vitals:
    """How one node is. Made, started and stopped on the loop; everything else is for any thread."""

    def __init__(
        self,
        shard: Shard,
        *,
        identity: Identity,
        version: str,
        clock: Clock,
        counters: Counters,
        free_bytes: Callable[[], int],
        data_file: Path,
        gauges: Mapping[str, Callable[[], int]],
        contact_age_ms_max: int,
        limits: Limits,
        supervises: Callable[[], bool],
    ) -> None:
        """`gauges` are lengths of what waits or is open, by name, asked on any thread.

        A node that has not heard of a leader for longer than `contact_age_ms_max` is not ready. `supervises`, also
        asked on any thread: whether this node leads and its supervisor is at work.
        """
        self.identity = identity
        self.version = version
        self.counters = counters
        self.data_file = data_file
        self.gauges = gauges
        self.limits = limits
        self.supervises = supervises
        self._shard = shard
        self._clock = clock
        self._read_free_bytes = free_bytes
        self._contact_age_ms_max = contact_age_ms_max
        self._timer: asyncio.TimerHandle | None = None
        # None: whatever it is when somebody asks.
        self._standing: Standing | None = None
        self._beat: tuple[int, Beat] | None = None
        # When the last batch was applied here, and what the rows then said of supervision.
        self._started_at_ms = self._head_at_ms = clock.steady_ms()
        self._findings = Findings()
        # The epoch that this node led when that was noted; 0: it led none.
        self._noted_epoch = 0
        self._condition = shard.condition()
        self._free_bytes: int | None = None
        self.draining = False
        shard.on_applied(self._on_applied)
        shard.on_standing(self._note_rows)

    # On the loop.

    def start(self) -> None:
        """Begin to note."""
        self._note()

    def drain(self) -> None:
        """The node is going down."""
        self.draining = True

    def stop(self) -> None:
        """Note no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _note(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(NOTE_S, self._note)
        if self._shard.stopped:
            return
        self._note_rows(self._shard.standing)
        try:
            self._free_bytes = self._read_free_bytes()
        except StoreFailed as failed:
            # Whoever writes will end the node for it; here it is only unknown.
            self._free_bytes = None
            _log.warning("free_bytes_unknown", why=str(failed))

    def _note_rows(self, standing: Standing) -> None:
        """Also at once when leadership changes: a new leader must not tell what it knew a second ago."""
        self._condition, self._findings = self._shard.condition(), self.find()
        self._noted_epoch = standing.epoch if standing.leads else 0

    def find(self) -> Findings:
        """What the rows say of supervision now."""
        with self._shard.committed() as reader:
            since_head_ms = self._clock.steady_ms() - self._head_at_ms
            return find(reader, since_head_ms=since_head_ms, limits=self.limits)

    def _on_applied(self, applied: Applied) -> None:
        self._head_at_ms = self._clock.steady_ms()
        for _, row in changed(applied, keys.BEAT + keys.LEDGER):
            if isinstance(row, Beat):
                self._beat = self._clock.steady_ms(), row
            elif isinstance(row, LedgerEntry):
                remedy = row.trouble.name, row.remedy.name, row.by.name
                self.counters.remedies[remedy] = self.counters.remedies.get(remedy, 0) + 1

    # On any thread.

    def of_this_moment(self) -> Vitals:
        """The same, of which no part is newer than another: what is told together must not contradict itself."""
        fixed = copy.copy(self)
        fixed._standing = self._shard.standing
        return fixed

    @property
    def standing(self) -> Standing:
        """What the replica was at the end of the last step."""
        return self._standing or self._shard.standing

    @property
    def leads(self) -> bool:
        """Whether this node leads, and what it has noted is of this leadership."""
        return self.standing.leads and self._noted_epoch == self.standing.epoch

    @property
    def condition(self) -> Condition:
        """What operators ask for beside it, as it was within the last second."""
        return self._condition

    @property
    def free_bytes(self) -> int | None:
        """Bytes that could still be written, within the last second; None: nobody knows."""
        return self._free_bytes

    @property
    def fetching_from(self) -> str:
        """The node whose rows this one needs to go on; empty: none."""
        return self._shard.rows.fetching_from

    @property
    def beat(self) -> Beat | None:
        """The last sign of life of a supervisor that was applied here since the process started."""
        beat = self._beat
        return None if beat is None else beat[1]

    @property
    def beat_age_ms(self) -> int | None:
        """How long ago that was applied."""
        beat = self._beat
        return None if beat is None else self._clock.steady_ms() - beat[0]

    @property
    def silent_ms(self) -> int:
        """For how long no beat has been applied here; since the start, before the first one."""
        beat_age_ms = self.beat_age_ms
        return self._since_start_ms if beat_age_ms is None else beat_age_ms

    @property
    def _since_start_ms(self) -> int:
        return self._clock.steady_ms() - self._started_at_ms

    @property
    def findings(self) -> Findings:
        """What the rows said of supervision within the last second."""
        return self._findings

    def supervision(self, findings: Findings) -> Verdict:
        """How supervision is, given what the rows say."""
        contact_age_ms = self.contact_age_ms
        leaderless_ms = self._since_start_ms if contact_age_ms is None else contact_age_ms
        return judge(findings, silent_ms=self.silent_ms, leaderless_ms=leaderless_ms)

    @property
    def contact_age_ms(self) -> int | None:
        """How long ago this node last heard of a leader; 0 when it leads, None when it never has."""
        standing = self.standing
        if standing.leads:
            return 0
        return self._clock.steady_ms() - standing.contact_at_ms if standing.contact_at_ms else None

    @property
    def lease_ms(self) -> int:
        """For how long nobody else can lead; 0 when this node does not lead."""
        standing = self.standing
        return max(0, standing.lease_until_ms - self._clock.steady_ms()) if standing.leads else 0

    def answer_age_ms(self, answered_at_ms: int | None) -> int | None:
        """How long ago a follower answered."""
        return None if answered_at_ms is None else self._clock.steady_ms() - answered_at_ms

    def unhealthy(self) -> str:
        """Why this process should be started anew; empty: it works."""
        if self._shard.stopped and not self.draining:
            return "the replica has stopped; the node's log says why"
        age_ms = self._clock.steady_ms() - self._shard.stepped_at_ms
        if age_ms > STEP_AGE_MS_MAX:
            return f"the last step began {age_ms} ms ago; at most {STEP_AGE_MS_MAX} ms is healthy"
        return ""

    def unready(self) -> str:
        """Why calls are better sent to another node; empty: this one serves."""
        unhealthy, standing = self.unhealthy(), self.standing
        if self.draining:
            return "the node is shutting down"
        if unhealthy:
            return unhealthy
        if standing.quarantined:
            return "the node came with an empty directory and does not hold yet what the others hold"
        if self.fetching_from:
            return f"the node fetches all rows from {self.fetching_from}"
        if standing.leads:
            return ""
        if not standing.takes_entries:
            free = "nobody knows how many" if self._free_bytes is None else self._free_bytes
            return f"the disk is nearly full ({free} bytes are free), so the node takes nothing new: free some"
        age_ms = self.contact_age_ms
        if not standing.leader_id or age_ms is None:
            return "the node knows no leader"
        if age_ms > self._contact_age_ms_max:
            return f"the node last heard of a leader {age_ms} ms ago; at most {self._contact_age_ms_max} ms will do"
        return ""
