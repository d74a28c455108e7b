"""What the watchdog tells Prometheus. Names are a promise: people build alarms on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from stepward.client.watchdog.verdicts import Level

if TYPE_CHECKING:
    from stepward.client.watchdog.dog import Watchdog

PREFIX: Final = "stepward_watchdog_"

# Values of the labels, and the value.
Sample: TypeAlias = tuple[tuple[str, ...], float]


class Metric(NamedTuple):
    """One metric. `read` gives label values with a value each; nothing when there is nothing to tell."""

    name: str
    kind: str
    help: str
    read: Callable[[Watchdog], Iterable[Sample]]
    labels: tuple[str, ...] = ()


def _one(value: float | None) -> list[Sample]:
    return [] if value is None else [((), float(value))]


def _levels(dog: Watchdog) -> list[Sample]:
    return [((level.name,), float(dog.level is level)) for level in Level]


def _reasons(dog: Watchdog) -> list[Sample]:
    counts = Counter((str(reason.kind), reason.level.name) for reason in dog.verdict.reasons)
    return [(labels, float(count)) for labels, count in sorted(counts.items())]


def _up(dog: Watchdog) -> list[Sample]:
    return [((sight.address, sight.node_id), float(not sight.error)) for sight in dog.sights]


def _beat_ages(dog: Watchdog) -> list[Sample]:
    return [((name, str(shard)), age_s) for (name, shard), age_s in sorted(dog.beat_ages_s.items())]


def _overdue(dog: Watchdog) -> list[Sample]:
    return [((str(shard),), float(count)) for shard, count in sorted(dog.overdue.items())]


def _incidents(dog: Watchdog) -> list[Sample]:
    return [((str(shard),), float(count)) for shard, count in sorted(dog.incidents_open.items())]


def _told(dog: Watchdog) -> list[Sample]:
    ways = ((teller.name, teller.told, teller.failed, teller.dropped) for teller in dog.tellers)
    return [
        ((name, result), float(count))
        for name, *counts in ways
        for result, count in zip(("told", "failed", "dropped"), counts, strict=True)
    ]


def _pings(dog: Watchdog) -> list[Sample]:
    if dog.dead_man is None:
        return []
    return [(("taken",), float(dog.dead_man.pings)), (("failed",), float(dog.dead_man.failed))]


def _canaries(dog: Watchdog) -> list[Sample]:
    if dog.canaries is None:
        return []
    return [(("back",), float(dog.canaries.back)), (("failed",), float(dog.canaries.failed))]


METRICS: Final = (
    Metric("level", "gauge", "1 for the level that is told at the moment, 0 for the others.", _levels, ("level",)),
    Metric("reasons", "gauge", "Reasons of the last verdict, by what they are about.", _reasons, ("kind", "level")),
    Metric("node_up", "gauge", "1 when the node answered when it was last asked.", _up, ("address", "node")),
    Metric(
        "beat_age_seconds",
        "gauge",
        "How old the newest sign of life of the supervisor is on a node that answers, as seen from here.",
        _beat_ages,
        ("node", "shard"),
    ),
    Metric("overdue", "gauge", "Timers that are due and not handled, by shard.", _overdue, ("shard",)),
    Metric("incidents_open", "gauge", "Incidents that wait for a person, by shard.", _incidents, ("shard",)),
    Metric("judgements_total", "counter", "Verdicts so far.", lambda dog: _one(dog.judgements)),
    Metric("changes_total", "counter", "How often another level was told.", lambda dog: _one(dog.changes)),
    Metric(
        "self_check_ticks",
        "gauge",
        "Seconds since the last verdict; the process ends itself when they are too many.",
        lambda dog: _one(dog.self_check.ticks),
    ),
    Metric("canaries_total", "counter", "Canary jobs, by what became of them.", _canaries, ("result",)),
    Metric(
        "canary_seconds",
        "gauge",
        "How long the last canary took that came back.",
        lambda dog: _one(dog.canaries.took_s if dog.canaries and dog.canaries.back else None),
    ),
    Metric("told_total", "counter", "Changes told to others, by way and result.", _told, ("way", "result")),
    Metric("pings_total", "counter", "Calls of the dead-man address, by result.", _pings, ("result",)),
)


def text(dog: Watchdog) -> str:
    """In the text format of Prometheus. Any thread may ask."""
    lines = []
    for metric in METRICS:
        name = PREFIX + metric.name
        lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}"]
        for values, value in metric.read(dog):
            pairs = ",".join(f'{label}="{_escaped(one)}"' for label, one in zip(metric.labels, values, strict=True))
            lines.append(f"{name}{{{pairs}}} {value:g}" if pairs else f"{name} {value:g}")
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
