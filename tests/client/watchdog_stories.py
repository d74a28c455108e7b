"""What a watchdog may see, and what it must conclude: a table of looks and verdicts.

A row is a story of some looks, a second apart or as it says; the verdict is that of the last look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from stepward.client.values import Member, NodeState
from stepward.client.watchdog.history import DIFFERENCE_S, DOUBT_S, GAP_S_MAX, Canary
from stepward.client.watchdog.judge import CANARY_LATE_S, CANARY_LOST_S, CRITICAL_S, WARNING_S
from stepward.client.watchdog.sights import Replica, Sight, Told
from stepward.client.watchdog.verdicts import Kind, Level

NODES = ("n1", "n2", "n3")
CANARY_INTERVAL_S = 15.0
BEGAN = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)

# What one look changes of what is seen when all is well: by node, or of all with "*". None: it does not answer.
Changes = dict[str, dict[str, Any] | None]


def cluster(at_s: float, changes: Changes, *, tells: bool, nodes: Sequence[str] = NODES) -> list[Sight]:
    """Three nodes of which n1 leads, with what a look changes; `tells`: they tell of supervision, as newer ones do."""
    return [sight(name, at_s, changes, tells=tells, members=nodes) for name in nodes]


def sight(name: str, at_s: float, changes: Changes, *, tells: bool, members: Sequence[str]) -> Sight:
    """One node, all of whose beats are of this very moment. Changes name fields of a `Replica` or of a `Sight`."""
    address = f"{name}:7654"
    both = (changes.get("*", {}), changes.get(name, {}))
    if None in both:
        return Sight(address=address, at_s=at_s, error=f"{address} took the call and did not answer in time")
    fields = {key: value for part in both if part for key, value in part.items()}
    told = Told(beat_age_s=0.2, beats=int(at_s), supervisor_state="RUNNING" if name == "n1" else "")
    told = replace(told, **fields.pop("told", {}))
    node = {key: fields.pop(key) for key in ("at_s", "node_id", "cluster_id", "state", "state_reason") if key in fields}
    replica = Replica(
        leads=name == "n1",
        leader_id="n1",
        term=3,
        epoch=2,
        sequence=int(at_s),
        hash=f"hash of {int(at_s)}",
        contact_age_s=None if name == "n1" else 0.1,
        beat_at=BEGAN + timedelta(seconds=at_s),
        told=told if tells else None,
    )
    seen = Sight(
        address=address,
        at_s=at_s,
        node_id=name,
        cluster_id="c",
        state=NodeState.SERVING,
        members=tuple(Member(member, f"{member}:7654") for member in members),
        replicas=(replace(replica, **fields),),
    )
    return replace(seen, **node)


@dataclass(frozen=True)
class Story:
    """Some looks, and what must come of the last."""

    name: str
    looks: Iterable[tuple[float, Changes]]
    level: Level
    kinds: tuple[Kind, ...] = ()
    words: str = ""
    """What some reason says."""
    tells: bool = True
    canary: Callable[[float], Canary | None] = lambda at_s: None


def well(*until_s: float) -> list[tuple[float, Changes]]:
    return [(at_s, {}) for at_s in until_s]


def then(at_s: float, for_s: float, changes: Changes, *, step_s: float = 1.0) -> list[tuple[float, Changes]]:
    """The same changes at every look from then on, for so long."""
    return [(at_s + number * step_s, changes) for number in range(round(for_s / step_s) + 1)]


def frozen(at_s: float, **more: Any) -> dict[str, Any]:
    """A replica on which nothing has moved since then."""
    still = {"sequence": int(at_s), "hash": f"hash of {int(at_s)}", "beat_at": BEGAN + timedelta(seconds=at_s)}
    return {**still, **more}


def silent_beat(at_s: float, now_s: float, **told: Any) -> dict[str, Any]:
    """The same, as a node tells it that measures how long it has applied no beat."""
    return frozen(at_s, told={"beat_age_s": now_s - at_s, "beats": int(at_s), **told})


NO_LEADER = {"leads": False, "leader_id": "", "contact_age_s": None}

STORIES = [
    Story("all is well", well(0, 1), Level.WELL),
    Story("all is well at the first look", well(0), Level.WELL),
    Story("older nodes, all is well", well(0, 1), Level.WELL, tells=False),
    # A node that does not answer.
    Story(
        "one node never answered", [(0, {"n3": None})], Level.WARNING, (Kind.NODE_SILENT,), "n3:7654 has not answered"
    ),
    Story("one answer lost", [*well(0), (1, {"n3": None}), (2, {"n3": None})], Level.WELL),
    Story(
        "one node silent",
        [*well(0), *then(1, DOUBT_S, {"n3": None})],
        Level.WARNING,
        (Kind.NODE_SILENT,),
        "n3 at n3:7654 has not answered for 4 s: n3:7654 took the call",
    ),
    Story(
        "the leader silent, another leads",
        [*well(0), *then(1, DOUBT_S, {"n1": None, "n2": {"leads": True, "term": 4}, "n3": {"leader_id": "n2"}})],
        Level.WARNING,
        (Kind.NODE_SILENT,),
    ),
    Story("nobody answers", [(0, {"*": None})], Level.UNKNOWN, (Kind.NOBODY_ANSWERS, *[Kind.NODE_SILENT] * 3)),
    Story("everybody missed one answer", [*well(0, 1), (2, {"*": None})], Level.WELL),
    Story(
        "everybody silent",
        [*well(0), *then(1, DOUBT_S, {"*": None})],
        Level.UNKNOWN,
        (Kind.NOBODY_ANSWERS, *[Kind.NODE_SILENT] * 3),
        "cut off",
    ),
    # Nodes that answer and are not what they should be.
    Story(
        "a node of no cluster",
        [(0, {"n3": {"state": NodeState.EMPTY}})],
        Level.WARNING,
        (Kind.NO_CLUSTER,),
        "cluster create",
    ),
    Story("a new, empty node", [(0, {"n2": {"state": NodeState.QUARANTINED}})], Level.WARNING, (Kind.NODE_PARTLY,)),
    Story(
        "a node that misses an election's result", [*well(0), (1, {"n2": {"state_reason": "no leader"}})], Level.WELL
    ),
    Story(
        "a node that shuts down",
        [*well(0), *then(1, DOUBT_S, {"n2": {"state_reason": "the node is shutting down"}})],
        Level.WARNING,
        (Kind.NODE_PARTLY,),
        "n2 takes part only partly: the node is shutting down",
    ),
    Story(
        "a node that has stopped", [(0, {"n2": {"state": NodeState.DIVERGED}})], Level.CRITICAL, (Kind.NODE_DIVERGED,)
    ),
    Story("another cluster", [(0, {"n2": {"cluster_id": "d"}})], Level.CRITICAL, (Kind.CLUSTERS_DIFFER,), "c, d"),
    Story("one node named twice", [(0, {"n2": {"node_id": "n3"}})], Level.WARNING, (Kind.SAME_NODE_TWICE,)),
    # Nobody leads.
    Story("an election", [*well(0), *then(1, WARNING_S - 2, {"*": NO_LEADER})], Level.WELL),
    Story(
        "no leader, for a while",
        [*well(0), *then(1, WARNING_S - 1, {"*": NO_LEADER})],
        Level.WARNING,
        (Kind.NO_LEADER,),
    ),
    Story(
        "no leader",
        [*well(0), *then(1, CRITICAL_S - 1, {"*": NO_LEADER})],
        Level.CRITICAL,
        (Kind.NO_LEADER,),
        "nobody has led shard 0 for 8 s (critical at 8 s)",
    ),
    Story("no leader at the first look", [(0, {"*": NO_LEADER})], Level.UNKNOWN, (Kind.NO_LEADER,)),
    Story(
        "no leader for long, at the first look",
        [(0, {"*": {**NO_LEADER, "contact_age_s": 60.0}})],
        Level.CRITICAL,
        (Kind.NO_LEADER,),
        "for 60 s",
    ),
    Story(
        "a leader that is known by name only",
        [*well(0), *then(1, CRITICAL_S, {"n1": None, "n2": {"contact_age_s": 9.0}, "n3": {"contact_age_s": 9.0}})],
        Level.CRITICAL,
        (Kind.NO_LEADER, Kind.NODE_SILENT),
    ),
    Story(
        "two of three are gone: the rest has no quorum and no beats",
        [*well(0), *then(1, CRITICAL_S, {"n1": None, "n2": None, "n3": frozen(0, **NO_LEADER)})],
        Level.CRITICAL,
        (Kind.NO_LEADER, Kind.BEAT_OLD, Kind.NODE_SILENT, Kind.NODE_SILENT),
        tells=False,
    ),
    # Two say that they lead.
    Story("two lead, for a moment", [*well(0), (1, {"n2": {"leads": True, "term": 4}})], Level.WELL),
    Story(
        "two lead",
        [*well(0), *then(1, DOUBT_S, {"n2": {"leads": True, "term": 4}})],
        Level.WARNING,
        (Kind.TWO_LEADERS,),
        "n1 (term 3) and n2 (term 4)",
    ),
    Story(
        "two lead in one term", [(0, {"n2": {"leads": True}})], Level.CRITICAL, (Kind.TWO_LEADERS,), "stop the cluster"
    ),
    # Rows that differ, at one look or at several.
    Story("rows differ", [(5, {"n2": {"hash": "other"}})], Level.CRITICAL, (Kind.ROWS_DIFFER,), "at sequence 5"),
    Story(
        "a replica that lags shows other rows at the same sequence",
        [*well(5), (6, {"n3": {"sequence": 5, "hash": "other"}})],
        Level.CRITICAL,
        (Kind.ROWS_DIFFER,),
        "n1 has hash of 5, n3 has other",
    ),
    Story(
        "rows differed long ago",
        [(5, {"n2": {"hash": "other"}}), *then(10, DIFFERENCE_S, {}, step_s=5)],
        Level.WELL,
    ),
    # Beats, as the watchdog sees them move.
    Story(
        "older nodes, no beat for a while",
        [*well(0, 1), *then(2, WARNING_S - 1, {"*": frozen(1)})],
        Level.WARNING,
        (Kind.BEAT_OLD,),
        tells=False,
    ),
    Story(
        "older nodes, no beat",
        [*well(0, 1), *then(2, CRITICAL_S - 1, {"*": frozen(1)})],
        Level.CRITICAL,
        (Kind.BEAT_OLD,),
        "for 8.0 s (critical at 8 s; seen on n1, n2, n3)",
        tells=False,
    ),
    Story(
        "older nodes, a beat of long ago, first look",
        [(60, {"*": frozen(1)})],
        Level.CRITICAL,
        (Kind.BEAT_OLD,),
        tells=False,
    ),
    Story(
        "older nodes whose clock is ahead of ours, first look",
        [(0, {"*": {"beat_at": BEGAN + timedelta(hours=1)}})],
        Level.UNKNOWN,
        (Kind.BEAT_OLD,),
        tells=False,
    ),
    Story(
        "older nodes whose clock is behind ours",
        [(at_s, {"*": {"beat_at": BEGAN + timedelta(seconds=at_s - 3_600)}}) for at_s in (0.0, 1.0)],
        Level.WELL,
        tells=False,
    ),
    Story(
        "no beat ever", [(0, {"*": {"beat_at": None, "told": {"beat_age_s": None}}})], Level.UNKNOWN, (Kind.BEAT_OLD,)
    ),
    Story(
        "no beat ever, for long",
        then(0, CRITICAL_S, {"*": {"beat_at": None, "told": {"beat_age_s": None, "beats": 0}}}),
        Level.CRITICAL,
        (Kind.BEAT_OLD,),
    ),
    # Beats, as the nodes measure them.
    Story("no beat for a while", [(9, {"*": silent_beat(5, 9)})], Level.WARNING, (Kind.BEAT_OLD,)),
    Story("no beat, at the first look", [(20, {"*": silent_beat(5, 20)})], Level.CRITICAL, (Kind.BEAT_OLD,)),
    Story(
        "a node says that beats come, and none is seen to move",
        [*well(0, 1), *then(2, CRITICAL_S - 1, {"*": frozen(1, told={"beats": 1})})],
        Level.CRITICAL,
        (Kind.BEAT_OLD,),
    ),
    Story(
        "one replica applies no beats, the others do",
        [*well(0, 1), (2, {"n3": silent_beat(1, 2)}), (3, {"n3": silent_beat(1, 3)}), (4, {"n3": silent_beat(1, 4)})],
        Level.WARNING,
        (Kind.REPLICA_BEHIND,),
        "n3 has applied no sign of life of the supervisor for 3 s, others have",
    ),
    Story(
        "the leader says that its supervisor runs, and its beats reach nobody",
        [(20, {"n1": {"told": {"supervisor_state": "RUNNING"}}, "n2": silent_beat(5, 20), "n3": silent_beat(5, 20)})],
        Level.WARNING,
        (Kind.REPLICA_BEHIND, Kind.REPLICA_BEHIND),
    ),
    Story(
        "an answer of a moment ago, since it is asked again: its beat is as old as it was then",
        [*well(0, 1), *then(2, 3, {"*": {**frozen(1), "at_s": 1}})],
        Level.WELL,
        tells=False,
    ),
    Story(
        "one node has begun anew and applies no beats",
        then(0, WARNING_S, {"n3": {"beat_at": None, "told": {"beat_age_s": None, "beats": 0}}}),
        Level.WARNING,
        (Kind.REPLICA_BEHIND,),
    ),
    # What the newest rows say.
    Story(
        "brake on", [(0, {"*": {"told": {"brake": "5 of 20 agents"}}})], Level.WARNING, (Kind.BRAKE,), "5 of 20 agents"
    ),
    Story(
        "a breaker open", [(0, {"*": {"told": {"breakers": ("default/pay: 0.9",)}}})], Level.WARNING, (Kind.BREAKER,)
    ),
    Story(
        "an epoch lost its supervisor",
        [(0, {"*": {"told": {"epochs_lost": 1}}})],
        Level.WARNING,
        (Kind.SUPERVISOR_LOST,),
    ),
    Story(
        "supervision off everywhere",
        [(0, {"*": {"told": {"epochs_lost": 3, "stays": True}}})],
        Level.CRITICAL,
        (Kind.LEADERSHIP_STAYS, Kind.SUPERVISOR_LOST),
    ),
    Story(
        "what a replica that lags says does not count",
        [*well(0), (1, {"n1": {"sequence": 0, "hash": "hash of 0", "told": {"stays": True}}})],
        Level.WELL,
    ),
    Story("the leader's supervisor begins", [(0, {"n1": {"told": {"supervisor_state": "NOT_STARTED"}}})], Level.WELL),
    Story(
        "the leader sees its supervisor stall",
        then(0, DOUBT_S, {"n1": {"told": {"supervisor_state": "STALLED"}}}),
        Level.WARNING,
        (Kind.SUPERVISOR_UNWELL,),
        "its supervisor is STALLED",
    ),
    # Nodes that judge otherwise than what is seen.
    Story(
        "one node says critical",
        [(0, {"n3": {"told": {"critical": True, "reason": "no leader"}}})],
        Level.WARNING,
        (Kind.NODE_SAYS,),
        "n3 says CRITICAL, not so n1, n2: no leader",
    ),
    Story(
        "most nodes say critical",
        [(0, {name: {"told": {"critical": True, "reason": "x"}} for name in ("n2", "n3")})],
        Level.CRITICAL,
        (Kind.NODE_SAYS,),
    ),
    Story("a node warns", [(0, {"n3": {"told": {"warning": True, "reason": "x"}}})], Level.WARNING, (Kind.NODE_SAYS,)),
    Story(
        "nodes warn of what is known",
        [(0, {"*": {"told": {"warning": True, "reason": "brake", "brake": "b"}}})],
        Level.WARNING,
        (Kind.BRAKE,),
    ),
    Story(
        "a node says of itself what is seen of it",
        [(4, {"n3": silent_beat(1, 4, critical=True, reason="no beat")})],
        Level.WARNING,
        (Kind.REPLICA_BEHIND,),
    ),
    Story(
        "most nodes say what is seen",
        [(20, {"*": silent_beat(5, 20, critical=True, reason="no beat")})],
        Level.CRITICAL,
        (Kind.BEAT_OLD,),
    ),
    Story(
        "one node says what is seen",
        [(20, {"*": silent_beat(5, 20), "n3": silent_beat(5, 20, critical=True, reason="no beat")})],
        Level.CRITICAL,
        (Kind.BEAT_OLD,),
    ),
    # What is due.
    Story("overdue for a moment", [(0, {"*": {"overdue": 3, "told": {"oldest_overdue_s": 1.0}}})], Level.WELL),
    Story(
        "overdue",
        [(0, {"*": {"overdue": 3, "told": {"oldest_overdue_s": 20.0}}})],
        Level.WARNING,
        (Kind.OVERDUE,),
        "3 timers of shard 0 are overdue, the oldest for 20 s",
    ),
    Story(
        "overdue and nothing done",
        [*well(0), *then(1, CRITICAL_S, {"*": {"overdue": 3, "told": {"oldest_overdue_s": 9.0}}})],
        Level.CRITICAL,
        (Kind.OVERDUE,),
        "nothing was done about any for 9 s",
    ),
    Story(
        "older nodes, overdue and nothing done",
        [*well(0), *then(1, CRITICAL_S, {"*": {"overdue": 3}})],
        Level.CRITICAL,
        (Kind.OVERDUE,),
        tells=False,
    ),
    Story(
        "a large backlog that shrinks",
        [(at_s, {"*": {"overdue": 900 - at_s, "told": {"oldest_overdue_s": 30.0}}}) for at_s in range(20)],
        Level.WARNING,
        (Kind.OVERDUE,),
    ),
    Story(
        "as much comes as is remediated",
        [
            (at_s, {"*": {"overdue": 900, "told": {"oldest_overdue_s": 30.0, "remediations": at_s}}})
            for at_s in range(20)
        ],
        Level.WARNING,
        (Kind.OVERDUE,),
    ),
    Story(
        "held back by the brake",
        then(0, 20, {"*": {"overdue": 9, "told": {"oldest_overdue_s": 30.0, "brake": "b"}}}),
        Level.WARNING,
        (Kind.BRAKE, Kind.OVERDUE),
    ),
    Story(
        "overdue at times",
        [(at_s, {"*": {"overdue": at_s % 2}}) for at_s in range(20)],
        Level.WELL,
        tells=False,
    ),
    Story(
        "overdue on a replica that lags",
        [
            *well(9),
            *then(
                10, 2, {"n3": {"sequence": 9, "hash": "hash of 9", "overdue": 5, "told": {"oldest_overdue_s": 30.0}}}
            ),
        ],
        Level.WELL,
    ),
    # The watchdog itself stood still: what was in between is not known.
    Story(
        "overdue before and after a gap",
        [(0, {"*": {"overdue": 1}}), (GAP_S_MAX + 1, {"*": {"overdue": 1}})],
        Level.WELL,
        tells=False,
    ),
    Story("no leader after a gap", [*well(0), (GAP_S_MAX + 1, {"*": NO_LEADER})], Level.WELL),
    Story("silent after a gap", [*well(0), (GAP_S_MAX + 1, {"n3": None})], Level.WELL),
    # Canaries.
    Story("a canary came back", well(20), Level.WELL, canary=lambda at_s: Canary(0, back_at_s=at_s)),
    Story("the first canary is under way", well(5), Level.WELL, canary=lambda _: Canary(0, sent_at_s=0)),
    Story(
        "a canary is late",
        well(CANARY_LATE_S + 5),
        Level.WARNING,
        (Kind.CANARY,),
        canary=lambda _: Canary(0, back_at_s=0, sent_at_s=5),
    ),
    Story(
        "a canary failed",
        well(5),
        Level.WARNING,
        (Kind.CANARY,),
        "(it ended FAILED)",
        canary=lambda _: Canary(0, back_at_s=0, trouble="it ended FAILED", failures=1),
    ),
    Story(
        "canaries fail",
        well(5),
        Level.CRITICAL,
        (Kind.CANARY,),
        canary=lambda _: Canary(0, back_at_s=0, trouble="it ended FAILED", failures=2),
    ),
    Story(
        "no canary comes back",
        well(CANARY_INTERVAL_S + CANARY_LOST_S),
        Level.CRITICAL,
        (Kind.CANARY,),
        "for 45 s",
        canary=lambda at_s: Canary(0, back_at_s=0, sent_at_s=at_s - 5),
    ),
    Story(
        "nodes too old for canaries",
        well(5),
        Level.WARNING,
        (Kind.CANARY,),
        "see --no-canary",
        tells=False,
        canary=lambda _: Canary(0, trouble="it was given up", failures=1),
    ),
]
