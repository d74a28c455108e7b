"""What the watchdog remembers of its looks. Pure: looks come in with their times, and nothing is asked or waited for.

It measures by its own steady clock, since a clock of the cluster may be a part of the trouble: a beat is as old as the
time in which it has not been seen to change, whatever is said of it. Everything that is kept is bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from datetime import datetime

    from stepward.client.watchdog.sights import Replica, Sight

K = TypeVar("K")

# What passes by itself, such as an election or one lost answer, counts when it has lasted for so long.
DOUBT_S: Final = 3.0
# A replica that has heard of its leader within this has one.
CONTACT_AGE_S_MAX: Final = 3.0
# Heads that are kept for comparison: minutes of a cluster that is idle, and what three nodes show within seconds of
# one that is busy.
HEADS_MAX: Final = 512
# Replicas that differ differ at every later head, too: what was seen longer ago than this is over.
DIFFERENCE_S: Final = 60.0
# After a longer time without a look nothing can be said of what was in between: the watchdog itself had stopped.
GAP_S_MAX: Final = 10.0


@dataclass(slots=True)
class BeatSeen:
    """The sign of life that one replica shows."""

    value: tuple[object, ...]
    seen_at_s: float
    """When this one was first seen."""
    wall_age_s: float | None
    """By the wall clocks of leader and watchdog, when it was first seen."""
    changed: bool = False
    """Whether another one was seen before it: then `seen_at_s` is when it came."""


@dataclass(slots=True)
class Overdue:
    """What is due in one shard and nobody handles."""

    count: int = 0
    remediations: int = -1
    since_s: float | None = None
    """From when on something was overdue at every look."""
    progress_at_s: float = 0.0
    """When there was last less of it than before, or a remediation more."""


@dataclass(frozen=True, slots=True)
class Canary:
    """How the jobs that are sent through everything fare."""

    began_at_s: float
    """When the first one was to be sent."""
    back_at_s: float | None = None
    """When the last one came back."""
    sent_at_s: float | None = None
    """When the one that is under way was sent. None: none is."""
    trouble: str = ""
    """What became of the last one that ended otherwise. Empty: the last one came back."""
    failures: int = 0
    """How many have ended otherwise since one came back."""


@dataclass(slots=True)
class History:
    """All that is remembered, of all looks so far."""

    doubt_s: float = DOUBT_S
    """How long what may pass must have lasted: less where there are only two looks."""
    now_s: float = 0.0
    sights: tuple[Sight, ...] = ()
    """What was last seen of each node."""
    canary: Canary | None = None
    """None: none is sent."""
    first_look_at_s: float | None = None
    answered_at_s: dict[str, float] = field(default_factory=dict)
    """By address: when it last answered, or else was first asked."""
    partly_since_s: dict[str, float] = field(default_factory=dict)
    """By address: since when the node says that it takes part only partly."""
    unwell_since_s: dict[str, float] = field(default_factory=dict)
    """By address: since when the node says that its supervisor, with which it leads, does not run."""
    names: dict[str, str] = field(default_factory=dict)
    """By address: the node that was last met there."""
    beats: dict[tuple[str, int], BeatSeen] = field(default_factory=dict)
    """By address and shard."""
    led_at_s: dict[int, float] = field(default_factory=dict)
    """By shard: when somebody surely led it."""
    rivals_since_s: dict[int, float] = field(default_factory=dict)
    """By shard: since when two nodes say that they lead."""
    overdue: dict[int, Overdue] = field(default_factory=dict)
    differing: dict[int, tuple[float, str]] = field(default_factory=dict)
    """By shard: when replicas were last seen to differ, and how."""
    _heads: OrderedDict[tuple[str, int, int], tuple[str, str]] = field(default_factory=OrderedDict)

    def take(self, sights: Sequence[Sight], *, now_s: float, now_wall: datetime, canary: Canary | None = None) -> None:
        """Add a look at all nodes: what was last seen of each."""
        if self.first_look_at_s is None:
            self.first_look_at_s = now_s
        elif now_s - self.now_s > GAP_S_MAX:
            self._forget(now_s)
        self.now_s, self.sights, self.canary = now_s, tuple(sights), canary
        for sight in sights:
            self.answered_at_s.setdefault(sight.address, sight.at_s)
            if not sight.error:
                self.answered_at_s[sight.address] = sight.at_s
                self.names[sight.address] = sight.name
                _note(self.partly_since_s, sight.address, now_s, holds=bool(sight.state_reason))
                unwell = any(one.told is not None and one.told.supervisor_unwell for one in sight.replicas)
                _note(self.unwell_since_s, sight.address, now_s, holds=unwell)
                for replica in sight.replicas:
                    self._take_beat(sight, replica, now_wall)
                    self._take_head(sight, replica)
        for shard in self.shards():
            self._take_shard(shard)

    def answering(self) -> list[Sight]:
        """The nodes that answered when they were last asked."""
        return [sight for sight in self.sights if not sight.error]

    def shards(self) -> list[int]:
        """Every shard that some node has."""
        return sorted({replica.shard for sight in self.answering() for replica in sight.replicas})

    def replicas(self, shard: int) -> list[tuple[Sight, Replica]]:
        """Of one shard, with the nodes that have them."""
        return [(sight, replica) for sight in self.answering() for replica in sight.replicas if replica.shard == shard]

    def newest(self, shard: int) -> Replica:
        """The replica of a shard that has applied most: what it shows as due nobody has handled."""
        return max((replica for _, replica in self.replicas(shard)), key=lambda replica: replica.sequence)

    def beat_age_s(self, sight: Sight, replica: Replica) -> float | None:
        """How old the newest beat of a replica was when the node answered; None: there is no proof of any.

        A node's own measure counts where it makes the beat older than what was seen from here, never younger. What has
        become of it since the answer nobody knows: a node that does not answer is a trouble of its own.
        """
        seen = self.beats[sight.address, replica.shard]
        unchanged_s = sight.at_s - seen.seen_at_s
        if replica.told is not None:
            if replica.told.beat_age_s is None:
                return None
            return max(unchanged_s, replica.told.beat_age_s)
        if seen.changed:
            return unchanged_s
        # Its first sight. The wall clocks may be wrong, and then tell nothing until the beat has moved.
        if seen.wall_age_s is None or seen.wall_age_s < 0:
            return None
        return max(unchanged_s, seen.wall_age_s + unchanged_s)

    def no_beat_s(self, sight: Sight, replica: Replica) -> float:
        """For how long at least a replica has shown no new beat, as seen from here."""
        return sight.at_s - self.beats[sight.address, replica.shard].seen_at_s

    def _take_beat(self, sight: Sight, replica: Replica, now_wall: datetime) -> None:
        told = replica.told
        value = (replica.beat_at, replica.epoch if told is None else told.beats)
        place = sight.address, replica.shard
        before = self.beats.get(place)
        if before is None or before.value != value:
            wall_age_s = None if replica.beat_at is None else (now_wall - replica.beat_at).total_seconds()
            self.beats[place] = BeatSeen(value, sight.at_s, wall_age_s, changed=before is not None)

    def _take_head(self, sight: Sight, replica: Replica) -> None:
        place = sight.cluster_id, replica.shard, replica.sequence
        known = self._heads.setdefault(place, (replica.hash, sight.name))
        if known[0] != replica.hash:
            how = f"{known[1]} has {known[0][:12]}, {sight.name} has {replica.hash[:12]} at sequence {replica.sequence}"
            self.differing[replica.shard] = sight.at_s, how
        while len(self._heads) > HEADS_MAX:
            self._heads.popitem(last=False)

    def _take_shard(self, shard: int) -> None:
        replicas = self.replicas(shard)
        leading = [replica for _, replica in replicas if replica.leads]
        if leading or any(_hears_leader(replica) for _, replica in replicas):
            self.led_at_s[shard] = self.now_s
        _note(self.rivals_since_s, shard, self.now_s, holds=len(leading) > 1)
        overdue = self.overdue.setdefault(shard, Overdue(progress_at_s=self.now_s))
        self._take_overdue(overdue, self.newest(shard))

    def _take_overdue(self, overdue: Overdue, replica: Replica) -> None:
        remediations = replica.told.remediations if replica.told is not None else overdue.remediations
        if replica.overdue == 0 or replica.overdue < overdue.count or remediations != overdue.remediations:
            overdue.progress_at_s = self.now_s
        if replica.overdue == 0:
            overdue.since_s = None
        elif overdue.since_s is None:
            overdue.since_s = self.now_s
        overdue.count, overdue.remediations = replica.overdue, remediations

    def _forget(self, now_s: float) -> None:
        """The watchdog itself stood still: what it last saw may have been otherwise all the while."""
        self.answered_at_s.clear()
        self.partly_since_s.clear()
        self.unwell_since_s.clear()
        self.led_at_s = dict.fromkeys(self.led_at_s, now_s)
        self.rivals_since_s.clear()
        self.overdue.clear()


def _note(since_s: dict[K, float], place: K, now_s: float, *, holds: bool) -> None:
    """Note since when something holds."""
    if holds:
        since_s.setdefault(place, now_s)
    else:
        since_s.pop(place, None)


def _hears_leader(replica: Replica) -> bool:
    age_s = replica.contact_age_s
    return bool(replica.leader_id) and age_s is not None and age_s <= CONTACT_AGE_S_MAX
