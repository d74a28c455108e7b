"""Job ids: the shard and a UUIDv7, rising within a shard.

Rising ids put almost every write at the right edge of its kind of row; random ones cost the store half its speed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from stepward.server.core import keys

if TYPE_CHECKING:
    from random import Random

    from stepward.server.core.reader import Reader

# What the bits of a UUIDv7 hold (RFC 9562, section 5.7): milliseconds, and a counter in what is left of version and
# variant. The counter starts at random with room above, and grows by a random step within a millisecond (section 6.2,
# method 2), so that an id does not tell how many came before it.
_COUNTER_BITS: Final = 74
_LOW_BITS: Final = 62
_STEP_BITS: Final = 32

_JOB_ID: Final = re.compile(r"(0|[1-9][0-9]{0,4})-[0-9a-f]{32}\Z")


def is_job_id(text: str) -> bool:
    """Whether this can be the id of a job."""
    return _JOB_ID.match(text) is not None


def shard_of(job_id: str) -> int:
    """The shard that a job lives in."""
    return int(job_id.partition("-")[0])


class JobIds:
    """Draws job ids of one shard, each greater than the one before, also over a restart and a clock set back."""

    def __init__(self, shard: int, rng: Random, *, newest: str = "") -> None:
        """`newest`: the greatest id that the shard holds. Ids continue behind it even if the wall clock does not."""
        self._prefix = f"{shard}-"
        self._rng = rng
        self._ms = int(newest.partition("-")[2][:12], 16) + 1 if newest else 0
        self._counter = rng.getrandbits(_COUNTER_BITS - 1)

    def draw(self, wall_ms: int) -> str:
        """The next id."""
        if wall_ms > self._ms:
            self._ms = wall_ms
            self._counter = self._rng.getrandbits(_COUNTER_BITS - 1)
        else:
            self._counter += 1 + self._rng.getrandbits(_STEP_BITS)
            if self._counter >> _COUNTER_BITS:
                self._ms += 1
                self._counter = self._rng.getrandbits(_COUNTER_BITS - 1)
        high, low = self._counter >> _LOW_BITS, self._counter & ((1 << _LOW_BITS) - 1)
        value = self._ms << 80 | 7 << 76 | high << 64 | 2 << 62 | low
        return f"{self._prefix}{value:032x}"


def newest_job_id(reader: Reader, shard: int) -> str:
    """The greatest id among the jobs of a shard; empty when it holds none."""
    prefix = keys.JOB + f"{shard}-".encode()
    return next((key[1:].decode() for key in reader.scan(prefix, reverse=True)), "")
