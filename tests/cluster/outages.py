"""What can befall the nodes of a cluster and its supervision, and what a watchdog beside it must say: a table.

`docs/outages.md` has the same rows with the figures of a run; a test compares them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

from stepward.client.watchdog.judge import CRITICAL_S, WARNING_S
from stepward.client.watchdog.settings import ANSWER_S_MAX

# The watchdog looks five times a second here; what it says is on its way for a moment, and machines are busy.
SLACK_S: Final = 2.0
# A leader is missed, another elected, its epoch opened and its first beat applied.
NEXT_BEAT_S_MAX: Final = 6.0
# How often the watchdog calls the dead-man address here. Whoever waits for it gives it three of these.
PING_S: Final = 1.0
PINGS_MISSED: Final = 3
# When the step falls due that nobody takes: soon after the outage has begun.
DUE_S: Final = 2.0


class Outage(StrEnum):
    """What happens. The value names folders and tests."""

    FOLLOWER_KILLED = "follower-killed"
    LEADER_KILLED = "leader-killed"
    LEADER_PAUSED = "leader-paused"
    LEADER_CUT_OFF = "leader-cut-off"
    NO_QUORUM = "no-quorum"
    SUPERVISOR_RAISES_ONCE = "supervisor-raises-once"
    SUPERVISOR_RAISES_ALWAYS = "supervisor-raises-always"
    SUPERVISOR_HANGS = "supervisor-hangs"
    SUPERVISORS_HANG = "supervisors-hang"
    WATCHDOG_KILLED = "watchdog-killed"


# Where nothing is wrong with any node but its supervisor.
SUPERVISORS: Final = frozenset(
    {
        Outage.SUPERVISOR_RAISES_ONCE,
        Outage.SUPERVISOR_RAISES_ALWAYS,
        Outage.SUPERVISOR_HANGS,
        Outage.SUPERVISORS_HANG,
    }
)


class Must(Struct, frozen=True, kw_only=True):
    """What must come of an outage."""

    title: str
    says: str
    """What the watchdog must say first. Empty: nothing, all stays well. CRITICAL is what must be told at last."""
    within_s: float = 0.0
    """By when that is told, from the beginning of the outage."""
    kinds: frozenset[str] = frozenset()
    """Of which some must be among its reasons."""
    still_s_max: float
    """For how long no new beat may be seen on any node."""
    decided: str
    """What becomes of the step that falls due meanwhile, for people."""
    heals: str = ""
    """What ends the outage, for people. Empty: it lasts, or has no end that is waited for."""


SILENT_S: Final = WARNING_S + ANSWER_S_MAX + SLACK_S
LOST_S: Final = CRITICAL_S + ANSWER_S_MAX
NEXT_LEADER: Final = "by the next leader"

MUST: Final[dict[Outage, Must]] = {
    Outage.FOLLOWER_KILLED: Must(
        title="a follower is killed",
        says="WARNING",
        within_s=SILENT_S,
        kinds=frozenset({"NODE_SILENT"}),
        still_s_max=WARNING_S,
        decided="as if nothing had been",
        heals="started again",
    ),
    Outage.LEADER_KILLED: Must(
        title="the leader is killed",
        says="WARNING",
        within_s=SILENT_S,
        kinds=frozenset({"NODE_SILENT"}),
        still_s_max=NEXT_BEAT_S_MAX,
        decided=NEXT_LEADER,
        heals="started again",
    ),
    Outage.LEADER_PAUSED: Must(
        title="the leader stands still (SIGSTOP)",
        says="WARNING",
        within_s=SILENT_S,
        kinds=frozenset({"NODE_SILENT"}),
        still_s_max=NEXT_BEAT_S_MAX,
        decided=NEXT_LEADER,
        heals="goes on",
    ),
    Outage.LEADER_CUT_OFF: Must(
        title="the leader is cut off from the other nodes, and not from the watchdog",
        says="WARNING",
        within_s=SILENT_S,
        kinds=frozenset({"REPLICA_BEHIND", "NODE_PARTLY", "NODE_SAYS"}),
        still_s_max=NEXT_BEAT_S_MAX,
        decided=NEXT_LEADER,
        heals="the wire is whole again",
    ),
    Outage.NO_QUORUM: Must(
        title="two of three are killed: the store has no quorum",
        says="CRITICAL",
        within_s=LOST_S,
        kinds=frozenset({"NO_LEADER", "BEAT_OLD"}),
        still_s_max=60.0,
        decided="when there is a quorum again; the time without one does not count",
        heals="both started again",
    ),
    Outage.SUPERVISOR_RAISES_ONCE: Must(
        title="the supervisor's loop raises once", says="", still_s_max=WARNING_S, decided="by the same supervisor"
    ),
    Outage.SUPERVISOR_RAISES_ALWAYS: Must(
        title="the supervisor's loop raises always, on the node that leads",
        says="WARNING",
        within_s=NEXT_BEAT_S_MAX + SLACK_S,
        kinds=frozenset({"BEAT_OLD", "SUPERVISOR_UNWELL", "SUPERVISOR_LOST", "NODE_SAYS"}),
        still_s_max=NEXT_BEAT_S_MAX,
        decided=NEXT_LEADER,
    ),
    Outage.SUPERVISOR_HANGS: Must(
        title="the supervisor's loop hangs, on the node that leads",
        says="WARNING",
        within_s=NEXT_BEAT_S_MAX + SLACK_S,
        kinds=frozenset({"BEAT_OLD", "SUPERVISOR_UNWELL", "SUPERVISOR_LOST", "NODE_SAYS"}),
        still_s_max=NEXT_BEAT_S_MAX,
        decided=NEXT_LEADER,
    ),
    Outage.SUPERVISORS_HANG: Must(
        title="the supervisor's loop hangs on every node that comes to lead",
        says="CRITICAL",
        within_s=LOST_S,
        kinds=frozenset({"BEAT_OLD", "LEADERSHIP_STAYS", "NODE_SAYS"}),
        still_s_max=600.0,
        decided="not before supervision is back; what is healthy goes on",
    ),
    Outage.WATCHDOG_KILLED: Must(
        title="the watchdog itself is killed",
        says="",
        still_s_max=WARNING_S,
        decided="as if nothing had been",
    ),
}


class Told(Struct, frozen=True):
    """One change that the watchdog told."""

    after_s: float
    level: str
    kinds: tuple[str, ...]
    text: str


class Seen(Struct, frozen=True, kw_only=True):
    """What was seen of one outage. Times count from its beginning."""

    told: tuple[Told, ...]
    still_s: float
    """The longest time in which no node showed a new beat."""
    decided_s: float | None
    """When the step that fell due meanwhile was decided. None: not before the end."""
    healed_s: float | None
    """When the outage was ended. None: it was not."""
    pinged_s: float
    """When the dead-man address was last called before the end or the next change to WELL."""
    canaries: int
    """How many canary jobs came back between the outage's beginning and the last of what is told here."""
    ended_s: float
    """When all this was written down."""


def breaches(outage: Outage, seen: Seen) -> list[str]:
    """One sentence for each thing that is not as it must be."""
    must = MUST[outage]
    found = [*_telling(must, seen), *_silence(outage, must, seen)]
    if seen.still_s > must.still_s_max:
        found.append(f"no new beat for {seen.still_s:.1f} s, at most {must.still_s_max:.0f} s may be")
    if seen.decided_s is None and outage is not Outage.SUPERVISORS_HANG:
        found.append("what fell due was never decided")
    if seen.canaries == 0 and outage in SUPERVISORS:
        found.append("no canary came back, although what is healthy goes on")
    return found


def _telling(must: Must, seen: Seen) -> list[str]:
    before_end = [told for told in seen.told if seen.healed_s is None or told.after_s <= seen.healed_s]
    if not must.says:
        return [f"{told.level} was told: {told.text}" for told in seen.told]
    right = [told for told in before_end if told.level == must.says]
    if not right:
        return [f"{must.says} was never told, but {[told.level for told in before_end]}"]
    found = []
    if right[0].after_s > must.within_s:
        found.append(f"{must.says} was told after {right[0].after_s:.1f} s, at most {must.within_s:.0f} s may be")
    if not must.kinds & set(right[0].kinds):
        found.append(f"the reasons are {right[0].kinds}, none of {sorted(must.kinds)}")
    if must.says != "CRITICAL" and any(told.level in ("CRITICAL", "UNKNOWN") for told in before_end):
        found.append(f"more was told than there was: {[told.level for told in before_end]}")
    if must.heals and seen.told[-1].level != "WELL":
        found.append(f"{seen.told[-1].level} is what was told last, not WELL: {seen.told[-1].text}")
    return found


def _silence(outage: Outage, must: Must, seen: Seen) -> list[str]:
    """The dead-man address hears nothing from the first change on, or from the watchdog's own end."""
    if outage is Outage.WATCHDOG_KILLED:
        silent_s = seen.ended_s - seen.pinged_s
        if seen.pinged_s > PING_S:
            return [f"the dead-man address was called {seen.pinged_s:.1f} s after the end of the watchdog"]
        if silent_s < PINGS_MISSED * PING_S:
            return [f"the dead-man address was listened to for {silent_s:.1f} s only, which is no silence"]
    elif must.says and seen.told and seen.pinged_s > seen.told[0].after_s + PING_S:
        return [f"the dead-man address was called at {seen.pinged_s:.1f} s, although all was not well"]
    return []


def in_ci() -> Sequence[Outage]:
    """Those that tests play; all are played when the page is written."""
    return (Outage.SUPERVISOR_HANGS, Outage.WATCHDOG_KILLED)
