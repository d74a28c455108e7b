"""What a person may do about nodes that do not take part, each with when it is right."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from stepward.client.cli.cluster_status import Found
    from stepward.client.values import NodeStatus, Refusal


def refusals(statuses: Sequence[NodeStatus]) -> Iterator[str]:
    """Who does not take whom, and why: one line for each node that is refused."""
    told: dict[tuple[str, str], Refusal] = {}
    for one in (refusal for status in statuses for refusal in status.refusals):
        pair = one.refused_node_id, one.node_id
        # Of the same told by both sides the one with the host says more.
        if pair not in told or one.refused_host:
            told[pair] = one
    refusers: dict[str, list[Refusal]] = {}
    for (refused_id, _), refusal in sorted(told.items()):
        refusers.setdefault(refused_id, []).append(refusal)
    for refused_id, by in refusers.items():
        # Of two that refuse each other it is the one whom more refuse.
        kept = [one for one in by if not _outdone(one, told, refusers)]
        if kept:
            names = ", ".join(one.node_id for one in kept)
            host = next((f" that calls from {one.refused_host}" for one in kept if one.refused_host), "")
            yield f"{names} {'does' if len(kept) == 1 else 'do'} not take {refused_id}{host}: {kept[0].reason}"


def _outdone(one: Refusal, told: Mapping[tuple[str, str], Refusal], refusers: Mapping[str, Sequence[Refusal]]) -> bool:
    is_mutual = (one.node_id, one.refused_node_id) in told
    return is_mutual and len(refusers[one.node_id]) > len(refusers[one.refused_node_id])


def advise(found: Sequence[Found], again: str) -> Iterator[str]:
    """The next step, where there is one. `again`: the options that lead another command to the same nodes."""
    away = [node.name for node in found if node.status is None]
    statuses = [node.status for node in found if node.status is not None]
    empty = [status.node_id for status in statuses if str(status.state) == "EMPTY"]
    quarantined = [status.node_id for status in statuses if str(status.state) == "QUARANTINED"]
    if empty:
        if any(status.cluster_id for status in statuses):
            yield f"{_named(empty)} will join by {_itself(empty)}, as soon as nothing of what is told above prevents it"
        else:
            yield from _advise_on_creating(empty, away, again)
    if quarantined:
        yield from _advise_on_quarantine(quarantined, away, len(found), again)


def _advise_on_creating(empty: Sequence[str], away: Sequence[str], again: str) -> Iterator[str]:
    if away:
        yield f"start {_named(away)}: a cluster is made of all nodes, and one that is away may know one already"
        return
    yield f"if these nodes have never been a cluster, make one, once: stepward cluster create{again}"
    yield (
        f"if they have, do not: bring back the directories of most of them, and let {_named(empty)} find an empty "
        "one only where it is lost"
    )


def _advise_on_quarantine(quarantined: Sequence[str], away: Sequence[str], count: int, again: str) -> Iterator[str]:
    waiting, *others = quarantined
    missing = [*others, *away]
    if not missing:
        yield f"{waiting} will take part by itself, when it holds what the others hold"
        return
    if away:
        yield f"start {_named(away)}: {_named(quarantined)} must hear from every node what may have been promised"
    if others:
        yield f"{_named(quarantined)} wait for each other's word: bring back the directory of one, if there is one"
    if 2 * (count - len(missing)) > count:
        gone = "".join(f" --gone {node_id}" for node_id in missing)
        yield (
            f"only if the data of {_named([waiting, *missing])} will never come back: stepward cluster recover "
            f"{waiting}{gone} --reason WHY{again} (what only they had is lost)"
        )


def _named(names: Sequence[str]) -> str:
    return " and ".join((", ".join(names[:-1]), names[-1])) if len(names) > 1 else names[0]


def _itself(names: Sequence[str]) -> str:
    return "itself" if len(names) == 1 else "themselves"
