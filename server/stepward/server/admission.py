"""Who gets in: bounds what waits for a decision, and tells those who do not get in when to come back.

New work is shed first, and only new work passes here; what belongs to jobs that exist always gets in. Knows no event
loop: it is told the time, and counts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from stepward.server.core.rejections import Reason, Refused, Rejection

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from stepward.server.clock import Clock
    from stepward.server.config import NodeConfig
    from stepward.server.observe import Counters

# How old an answer about the free disk may be.
_FREE_BYTES_AGE_MS: Final = 1_000
# How long a measured rate counts: long enough to hold some flushes of a slow disk, short enough to follow it.
_RATE_MEMORY_MS: Final = 3_000.0
# Delays are spread this far around their middle, so that those who were refused together do not come back together.
_JITTER: Final = 0.5


class DrainRate:
    """How many submissions are decided in a second, measured over the time in which some wait.

    Newer time counts more. Idle time does not count: nobody had to wait in it.
    """

    def __init__(self) -> None:
        self._decided = 0.0
        self._busy_ms = 0.0
        self._seen_ms = 0

    def pass_time(self, now_ms: int, *, busy: bool) -> None:
        """Take in the time since the last call, in which some were waiting or none."""
        passed_ms, self._seen_ms = max(0, now_ms - self._seen_ms), now_ms
        if busy:
            kept = math.exp(-passed_ms / _RATE_MEMORY_MS)
            self._decided *= kept
            self._busy_ms = self._busy_ms * kept + _RATE_MEMORY_MS * (1 - kept)

    def decide(self) -> None:
        """One was decided."""
        self._decided += 1

    def wait_ms(self, count: float) -> float | None:
        """How long it takes to decide so many; None when nothing was measured, infinite when nothing moves."""
        if not self._busy_ms:
            return None
        return count * self._busy_ms / self._decided if self._decided else math.inf


class _Held(NamedTuple):
    """What waits: of one namespace, or of all."""

    jobs: int
    size_bytes: int

    def plus(self, jobs: int, size_bytes: int) -> _Held:
        return _Held(self.jobs + jobs, self.size_bytes + size_bytes)


_NOTHING: Final = _Held(0, 0)


class Admission:
    """Admits new work in front of one shard.

    While less than half of the room is taken everybody gets in. Beyond it a namespace may hold at most its share: the
    whole divided by the namespaces of which something waits, and one more, so that there is room for a newcomer. So one
    namespace alone may hold half.
    """

    def __init__(
        self, *, config: NodeConfig, clock: Clock, counters: Counters, rng: Random, free_bytes: Callable[[], int]
    ) -> None:
        """`free_bytes`: how much can be written before the disk is full, as well as that is known."""
        self._config = config
        self._clock = clock
        self._counters = counters
        self._rng = rng
        self._free_bytes = free_bytes
        self._free_bytes_asked_ms = -_FREE_BYTES_AGE_MS
        self._disk_has_room = True
        self._waiting = _NOTHING
        self._by_namespace: dict[str, _Held] = {}
        self._rate = DrainRate()

    @property
    def waiting(self) -> int:
        """How many submissions wait for a decision."""
        return self._waiting.jobs

    def admit(self, namespace: str, size_bytes: int) -> None:
        """Let new work of so many bytes wait; to be given back with `decided`.

        Raises:
            Refused: OVERLOADED, with the time after which there should be room; DISK_FULL.
        """
        self.require_room(namespace, size_bytes)
        self._waiting = self._waiting.plus(1, size_bytes)
        self._by_namespace[namespace] = self._by_namespace.get(namespace, _NOTHING).plus(1, size_bytes)

    def require_room(self, namespace: str, size_bytes: int, *, jobs: int = 1) -> None:
        """Refuse what `admit` would refuse, of so many together. Cheap, so it is asked before anything costly is done.

        Raises:
            Refused: As `admit`.
        """
        self._require_room_on_disk()
        self._rate.pass_time(self._clock.steady_ms(), busy=self._waiting.jobs > 0)
        held = self._by_namespace.get(namespace, _NOTHING)
        total = self._waiting.plus(jobs, size_bytes)
        config = self._config
        if total.jobs > config.submissions_waiting_max or total.size_bytes > config.submission_bytes_waiting_max:
            text = (
                f"{self._waiting.jobs} submissions of {self._waiting.size_bytes} bytes wait for a decision; at most "
                f"{config.submissions_waiting_max} of {config.submission_bytes_waiting_max} bytes may; come back"
            )
            raise self.overloaded(text, retry_after_ms=self._retry_after_ms(self._waiting.jobs))
        if self._is_half_full(total) and held.jobs and not self._is_within_share(held.plus(jobs, size_bytes)):
            active = len(self._by_namespace)
            text = (
                f"namespace {namespace} has {held.jobs} submissions of {held.size_bytes} bytes that wait for a "
                f"decision, which is its share while {active} namespaces submit: come back"
            )
            raise self.overloaded(text, retry_after_ms=self._retry_after_ms(held.jobs * active))

    def decided(self, namespace: str, size_bytes: int) -> None:
        """What was admitted waits no longer, whoever has gone away meanwhile."""
        self._rate.pass_time(self._clock.steady_ms(), busy=True)
        self._rate.decide()
        self._waiting = self._waiting.plus(-1, -size_bytes)
        held = self._by_namespace[namespace].plus(-1, -size_bytes)
        if held.jobs:
            self._by_namespace[namespace] = held
        else:
            del self._by_namespace[namespace]

    def overloaded(self, text: str, *, retry_after_ms: int | None = None) -> Refused:
        """The refusal of something for which there is no room now, counted; when to come back is spread."""
        self._counters.shed_for(Reason.OVERLOADED.value)
        if retry_after_ms is None:
            retry_after_ms = self._spread(self._config.overload_retry_after_ms)
        return Refused(Rejection(Reason.OVERLOADED, text, retry_after_ms=retry_after_ms))

    def _is_half_full(self, total: _Held) -> bool:
        config = self._config
        return (
            2 * total.jobs > config.submissions_waiting_max
            or 2 * total.size_bytes > config.submission_bytes_waiting_max
        )

    def _is_within_share(self, held: _Held) -> bool:
        config, sharers = self._config, len(self._by_namespace) + 1
        return (
            held.jobs <= config.submissions_waiting_max // sharers
            and held.size_bytes <= config.submission_bytes_waiting_max // sharers
        )

    def _retry_after_ms(self, in_front: int) -> int:
        """When half of what is in front will have been decided: at its end nobody would be there to go on."""
        wait_ms = self._rate.wait_ms(in_front / 2)
        return self._spread(self._config.overload_retry_after_ms if wait_ms is None else wait_ms)

    def _spread(self, wait_ms: float) -> int:
        """Around `wait_ms`, within the configured bounds."""
        least, most = self._config.overload_retry_ms_min, self._config.overload_retry_ms_max
        spread_ms = min(wait_ms, most) * self._rng.uniform(1 - _JITTER, 1 + _JITTER)
        return int(min(max(spread_ms, least), most))

    def want_of_disk(self) -> str:
        """Why new work is refused: the disk is nearly full, and what is left is for jobs that exist; empty: it is not.

        Asked again at most so often.
        """
        now_ms, least = self._clock.steady_ms(), self._config.free_bytes_for_submissions_min
        if now_ms - self._free_bytes_asked_ms >= _FREE_BYTES_AGE_MS:
            self._free_bytes_asked_ms = now_ms
            self._disk_has_room = self._free_bytes() >= least
        if self._disk_has_room:
            return ""
        room = f"{least / 2**20:g} MiB"
        return f"less than {room} of disk are free; running jobs go on, and new ones are refused: free some"

    def _require_room_on_disk(self) -> None:
        text = self.want_of_disk()
        if text:
            self._counters.shed_for(Reason.DISK_FULL.value)
            raise Refused(Rejection(Reason.DISK_FULL, text, retry_after_ms=_FREE_BYTES_AGE_MS))
