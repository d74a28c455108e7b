"""What follows from all that was seen: a verdict with its reasons. Pure.

Nothing is well without a proof: a leader that somebody hears, and a beat that moves. What the leader says of its own
supervisor only ever makes a verdict worse.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from stepward.client.values import NodeState
from stepward.client.watchdog.history import DIFFERENCE_S
from stepward.client.watchdog.verdicts import Kind, Level, Reason, Verdict

if TYPE_CHECKING:
    from stepward.client.values import Member
    from stepward.client.watchdog.history import History
    from stepward.client.watchdog.sights import Sight

# A beat is written every second. After so long without one, without a leader, or with something overdue that nobody
# handles, supervision is in doubt; after the longer time it has stopped. The nodes judge by the same two.
WARNING_S: Final = 3.0
CRITICAL_S: Final = 8.0

# A canary takes milliseconds. One whose agent's node has just died waits until that lease is over, which is no fault.
CANARY_LATE_S: Final = 10.0
CANARY_LOST_S: Final = 30.0
CANARY_FAILURES_MAX: Final = 2


def judge(history: History, *, canary_interval_s: float = 0.0) -> Verdict:
    """The verdict of this moment, which is that of the last look."""
    reasons = [
        *_nodes(history),
        *_cluster(history),
        *(reason for shard in history.shards() for reason in _shard(history, shard)),
        *_canary(history, canary_interval_s),
    ]
    reasons += _said(history, reasons)
    return Verdict(tuple(sorted(reasons, key=lambda reason: -reason.level.gravity)))


def _nodes(history: History) -> Iterator[Reason]:
    """Each node by itself."""
    for sight in history.sights:
        if sight.error:
            yield from _silent(history, sight)
        elif sight.state is NodeState.DIVERGED:
            why = sight.state_reason or "its rows and the log do not fit together"
            yield Reason(Kind.NODE_DIVERGED, Level.CRITICAL, f"{sight.name} has stopped: {why}", sight.name)
        elif sight.state is NodeState.EMPTY:
            text = f"{sight.name} belongs to no cluster yet: stepward cluster create makes one"
            yield Reason(Kind.NO_CLUSTER, Level.WARNING, text, sight.name)
        elif sight.state is NodeState.QUARANTINED or _lasts(history, history.partly_since_s.get(sight.address)):
            why = sight.state_reason or "its directory was empty, and it does not count yet"
            yield Reason(Kind.NODE_PARTLY, Level.WARNING, f"{sight.name} takes part only partly: {why}", sight.name)


def _lasts(history: History, since_s: float | None) -> bool:
    """Whether something that may pass has been so for long enough to be told."""
    return since_s is not None and history.now_s - since_s >= history.doubt_s


def _silent(history: History, sight: Sight) -> Iterator[Reason]:
    known = history.names.get(sight.address)
    silent_s = history.now_s - history.answered_at_s[sight.address]
    if known is None:
        text = f"{sight.address} has not answered yet: {sight.error}"
        yield Reason(Kind.NODE_SILENT, Level.WARNING, text, sight.address)
    elif silent_s >= history.doubt_s:
        text = f"{known} at {sight.address} has not answered for {silent_s:.0f} s: {sight.error}"
        yield Reason(Kind.NODE_SILENT, Level.WARNING, text, known)


def _cluster(history: History) -> Iterator[Reason]:
    """All nodes together, apart from their rows."""
    answering = history.answering()
    if not answering:
        if history.names and all(_silent_s(history, sight) < history.doubt_s for sight in history.sights):
            # Nobody would be helped by an alarm at one lost packet.
            return
        text = "no node answers: either the cluster is down, or this watchdog is cut off from it"
        yield Reason(Kind.NOBODY_ANSWERS, Level.UNKNOWN, text)
        return
    if not history.shards():
        yield Reason(Kind.NO_CLUSTER, Level.UNKNOWN, "no node that answers belongs to a cluster")
    clusters = sorted({sight.cluster_id for sight in answering if sight.cluster_id})
    if len(clusters) > 1:
        text = f"the addresses lead to different clusters: {', '.join(clusters)}"
        yield Reason(Kind.CLUSTERS_DIFFER, Level.CRITICAL, text)
    times = Counter(sight.node_id for sight in answering if sight.node_id)
    for node_id, count in sorted(times.items()):
        if count > 1:
            where = ", ".join(sight.address for sight in answering if sight.node_id == node_id)
            yield Reason(
                Kind.SAME_NODE_TWICE, Level.WARNING, f"{where} are all {node_id}: name each node once", node_id
            )
    members = {member.node_id: member for sight in answering for member in sight.members}
    if len(members) > len(history.sights):
        met = {sight.node_id for sight in history.sights} | set(history.names.values())
        unmet = ", ".join(_named(member) for node_id, member in sorted(members.items()) if node_id not in met)
        watched = f"{len(history.sights)} of the {len(members)} nodes of the cluster"
        text = f"only {watched} {'is' if len(history.sights) == 1 else 'are'} watched; --nodes must name {unmet}, too"
        yield Reason(Kind.NOT_WATCHED, Level.WARNING, text)


def _named(member: Member) -> str:
    """A node, and where the others say that it is: whether it is reached there from here they cannot know."""
    return f"{member.node_id} (to the others {member.address})" if member.address else member.node_id


def _silent_s(history: History, sight: Sight) -> float:
    return history.now_s - history.answered_at_s[sight.address]


def _shard(history: History, shard: int) -> Iterator[Reason]:
    """One shard: who leads it, whether its replicas agree, and whether somebody supervises."""
    yield from _leadership(history, shard)
    difference = history.differing.get(shard)
    if difference is not None and history.now_s - difference[0] <= DIFFERENCE_S:
        text = (
            f"replicas of shard {shard} differ, which must never be: {difference[1]}; stop the cluster, keep its files"
        )
        yield Reason(Kind.ROWS_DIFFER, Level.CRITICAL, text)
    yield from _beats(history, shard)
    yield from _told(history, shard)
    yield from _overdue(history, shard)


def _leadership(history: History, shard: int) -> Iterator[Reason]:
    leading = [(sight, replica) for sight, replica in history.replicas(shard) if replica.leads]
    terms = Counter(replica.term for _, replica in leading)
    if max(terms.values(), default=0) > 1:
        names = " and ".join(sight.name for sight, _ in leading)
        text = f"{names} lead shard {shard} in one term, which must never be: stop the cluster, keep its files"
        yield Reason(Kind.TWO_LEADERS, Level.CRITICAL, text)
    elif len(leading) > 1 and _lasts(history, history.rivals_since_s[shard]):
        names = " and ".join(f"{sight.name} (term {replica.term})" for sight, replica in leading)
        yield Reason(Kind.TWO_LEADERS, Level.WARNING, f"{names} both say that they lead shard {shard}")
    yield from _nobody_leads(history, shard)


def _nobody_leads(history: History, shard: int) -> Iterator[Reason]:
    led_at_s = history.led_at_s.get(shard)
    if led_at_s == history.now_s:
        return
    began_s = history.first_look_at_s if led_at_s is None else led_at_s
    assert began_s is not None, "a shard is known from a look"
    contacts = [replica.contact_age_s for _, replica in history.replicas(shard) if replica.contact_age_s is not None]
    alone_s = max(history.now_s - began_s, min(contacts, default=0.0))
    text = f"nobody has led shard {shard} for {alone_s:.0f} s (critical at {CRITICAL_S:.0f} s): nothing is supervised"
    if alone_s >= CRITICAL_S:
        yield Reason(Kind.NO_LEADER, Level.CRITICAL, text)
    elif alone_s >= WARNING_S:
        yield Reason(Kind.NO_LEADER, Level.WARNING, text)
    elif led_at_s is None:
        yield Reason(Kind.NO_LEADER, Level.UNKNOWN, f"nobody is seen to lead shard {shard} yet")


def _beats(history: History, shard: int) -> Iterator[Reason]:
    ages = {sight.name: history.beat_age_s(sight, replica) for sight, replica in history.replicas(shard)}
    known = {name: age_s for name, age_s in ages.items() if age_s is not None}
    # Without a proof it has been missing at least since this watchdog looks.
    missing_s = min(history.no_beat_s(sight, replica) for sight, replica in history.replicas(shard))
    youngest_s = min(known.values(), default=missing_s)
    text = f"shard {shard} shows no sign of life of its supervisor for {youngest_s:.1f} s"
    if youngest_s >= CRITICAL_S:
        bound = f"critical at {CRITICAL_S:.0f} s; seen on {', '.join(sorted(ages))}"
        yield Reason(Kind.BEAT_OLD, Level.CRITICAL, f"{text} ({bound}): nothing is supervised")
    elif youngest_s >= WARNING_S:
        yield Reason(Kind.BEAT_OLD, Level.WARNING, f"{text} (critical at {CRITICAL_S:.0f} s)")
    elif not known:
        yield Reason(Kind.BEAT_OLD, Level.UNKNOWN, f"shard {shard} has shown no sign of life of its supervisor yet")
    else:
        for sight, replica in history.replicas(shard):
            age_s = known.get(sight.name, history.no_beat_s(sight, replica))
            if age_s >= WARNING_S:
                text = f"{sight.name} has applied no sign of life of the supervisor for {age_s:.0f} s, others have"
                yield Reason(Kind.REPLICA_BEHIND, Level.WARNING, text, sight.name)


def _told(history: History, shard: int) -> Iterator[Reason]:
    """What the newest rows say of supervision, and the leader of itself."""
    replicas = [(sight, replica) for sight, replica in history.replicas(shard) if replica.told is not None]
    if not replicas:
        return
    _, newest = max(replicas, key=lambda one: one[1].sequence)
    told = newest.told
    assert told is not None, "only those that tell are chosen from"
    if told.stays:
        text = f"supervision of shard {shard} has failed on node after node: the leader stays and remediates nothing"
        yield Reason(Kind.LEADERSHIP_STAYS, Level.CRITICAL, text)
    if told.epochs_lost:
        times = "one leadership" if told.epochs_lost == 1 else f"{told.epochs_lost} leaderships"
        text = f"{times} of shard {shard} lost the supervisor within the last minute"
        yield Reason(Kind.SUPERVISOR_LOST, Level.WARNING, text)
    for sight, replica in replicas:
        if replica.told and replica.told.supervisor_unwell and _lasts(history, history.unwell_since_s[sight.address]):
            text = f"{sight.name} is to lead shard {shard}, and its supervisor is {replica.told.supervisor_state}"
            yield Reason(Kind.SUPERVISOR_UNWELL, Level.WARNING, text, sight.name)
    if told.brake:
        yield Reason(Kind.BRAKE, Level.WARNING, f"remediation of shard {shard} is held back: {told.brake}")
    for breaker in told.breakers:
        yield Reason(Kind.BREAKER, Level.WARNING, f"an action fails and is not offered: {breaker}")


def _overdue(history: History, shard: int) -> Iterator[Reason]:
    """What is due is handled within a second. A brake, or a large backlog that shrinks, is no standstill."""
    overdue = history.overdue[shard]
    if overdue.since_s is None:
        return
    newest = history.newest(shard)
    seen_s = history.now_s - overdue.since_s
    oldest_s = seen_s if newest.told is None else max(seen_s, newest.told.oldest_overdue_s)
    still_s = history.now_s - overdue.progress_at_s
    held = newest.told is not None and bool(newest.told.brake)
    what = f"{overdue.count} timers of shard {shard} are overdue, the oldest for {oldest_s:.0f} s"
    if still_s >= CRITICAL_S and oldest_s >= CRITICAL_S and not held:
        text = f"{what}, and nothing was done about any for {still_s:.0f} s (critical at {CRITICAL_S:.0f} s)"
        yield Reason(Kind.OVERDUE, Level.CRITICAL, text)
    elif oldest_s >= WARNING_S:
        yield Reason(Kind.OVERDUE, Level.WARNING, what)


def _canary(history: History, interval_s: float) -> Iterator[Reason]:
    canary = history.canary
    if canary is None:
        return
    lost_after_s = interval_s + CANARY_LOST_S
    back_s = history.now_s - (canary.began_at_s if canary.back_at_s is None else canary.back_at_s)
    under_way_s = 0.0 if canary.sent_at_s is None else history.now_s - canary.sent_at_s
    what = f"no canary job has come back for {back_s:.0f} s" + (canary.trouble and f" ({canary.trouble})")
    if back_s >= lost_after_s or canary.failures >= CANARY_FAILURES_MAX:
        yield Reason(Kind.CANARY, Level.CRITICAL, f"{what}; critical at {lost_after_s:.0f} s{_hint(history)}")
    elif canary.failures or under_way_s >= CANARY_LATE_S:
        yield Reason(Kind.CANARY, Level.WARNING, what + _hint(history))


def _hint(history: History) -> str:
    replicas = [replica for sight in history.answering() for replica in sight.replicas]
    if any(replica.told is not None for replica in replicas):
        return ""
    return "; these nodes may be too old to carry canaries: see --no-canary"


def _said(history: History, reasons: list[Reason]) -> Iterator[Reason]:
    """What nodes judge of themselves, as far as nothing else says it. That of most nodes counts as seen."""
    saying = [(sight, replica.told) for sight in history.answering() for replica in sight.replicas if replica.told]
    critical = [sight.name for sight, told in saying if told.critical]
    known = Verdict(tuple(reasons)).level
    if 2 * len(critical) > len(history.sights) and known is not Level.CRITICAL:
        text = "; ".join(f"{sight.name} says CRITICAL: {told.reason}" for sight, told in saying if told.critical)
        yield Reason(Kind.NODE_SAYS, Level.CRITICAL, text)
        return
    named = {reason.node for reason in reasons}
    for sight, told in saying:
        if sight.name in named or known is Level.CRITICAL:
            continue
        if told.critical:
            others = ", ".join(other.name for other, view in saying if not view.critical)
            text = f"{sight.name} says CRITICAL, not so {others or 'anybody else'}: {told.reason}"
            yield Reason(Kind.NODE_SAYS, Level.WARNING, text, sight.name)
        elif told.warning and known is Level.WELL:
            yield Reason(Kind.NODE_SAYS, Level.WARNING, f"{sight.name} says WARNING: {told.reason}", sight.name)
