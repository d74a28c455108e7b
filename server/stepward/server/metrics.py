"""What a node tells Prometheus: each metric's name, what it means, and where its value comes from.

Names are a promise: people build alarms on them. `docs/metrics.md` is made from this table, and a test compares them.
Values are taken from plain counters, so a scrape costs the loop nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from stepward.server.core.due import KINDS
from stepward.server.core.rows import JobState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from prometheus_client.core import Metric as Family

    from stepward.server.logbook.outbox import Follower
    from stepward.server.observe import Histogram
    from stepward.server.vitals import Vitals

PREFIX: Final = "stepward_"

# Values of the labels, and the value.
Sample: TypeAlias = tuple[tuple[str, ...], float]


class Metric(NamedTuple):
    """One metric. `read` gives label values with a value each; nothing when there is nothing to tell."""

    name: str
    kind: str
    help: str
    read: Callable[[Vitals], Iterable[Sample]]
    labels: tuple[str, ...] = ()


class Spread(NamedTuple):
    """One histogram of durations in seconds."""

    name: str
    help: str
    read: Callable[[Vitals], Histogram]


def gauge(name: str, text: str, read: Callable[[Vitals], float | None]) -> Metric:
    """A value that goes up and down, without labels; None: it is not told."""
    return Metric(name, "gauge", text, lambda vitals: _one(read(vitals)))


def counter(name: str, text: str, read: Callable[[Vitals], float]) -> Metric:
    """A value that only goes up, without labels."""
    return Metric(name, "counter", text, lambda vitals: _one(read(vitals)))


def _one(value: float | None) -> list[Sample]:
    return [] if value is None else [((), value)]


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1_000


def _calls(vitals: Vitals) -> Iterator[Sample]:
    for method, by_code in dict(vitals.counters.calls_by_code).items():
        for code, count in dict(by_code).items():
            yield (method, code), count


def _tally(by_name: dict[str, int]) -> list[Sample]:
    return [((name,), count) for name, count in dict(by_name).items()]


def _failures(vitals: Vitals) -> list[Sample]:
    counters = vitals.counters
    return [
        (("rule",), counters.rule_failures),
        (("call",), counters.call_failures),
        (("delivery",), counters.delivery_failures),
        (("supervisor",), counters.supervisor_failures),
        (("leadership",), counters.supervisors_lost),
    ]


def _node(vitals: Vitals) -> list[Sample]:
    identity = vitals.identity
    return [((identity.cluster_id, identity.node_id, vitals.version), 1)]


def _followers(vitals: Vitals) -> Sequence[Follower]:
    """The others as the leader sees them. What was noted while this node led is nobody's any more."""
    return vitals.condition.followers if vitals.leads else ()


def _log_behind(vitals: Vitals) -> list[Sample]:
    condition = vitals.condition
    return [((one.node_id,), condition.log_last_index - one.match_index) for one in _followers(vitals)]


def _answer_ages(vitals: Vitals) -> list[Sample]:
    ages = ((one.node_id, vitals.answer_age_ms(one.answered_at_ms)) for one in _followers(vitals))
    return [((node_id,), age_ms / 1_000) for node_id, age_ms in ages if age_ms is not None]


def _free_bytes(vitals: Vitals) -> list[Sample]:
    told = ((one.node_id, one.free_bytes) for one in _followers(vitals))
    return [((node_id,), free_bytes) for node_id, free_bytes in told if free_bytes is not None]


def _jobs(vitals: Vitals) -> list[Sample]:
    if not vitals.leads:
        return []
    return [((state.name,), vitals.findings.jobs.get(state, 0)) for state in JobState]


def _waiting(vitals: Vitals) -> list[Sample]:
    found = [((name,), read()) for name, read in vitals.gauges.items()]
    return [(("commands",), vitals.condition.waiting), *found]


STANDING: Final = (
    Metric("node", "gauge", "Always 1; says who this is.", _node, ("cluster_id", "node_id", "version")),
    gauge("healthy", "1 when /healthz says so: the process works.", lambda v: not v.unhealthy()),
    gauge("ready", "1 when /readyz says so: calls may be sent here.", lambda v: not v.unready()),
    gauge("empty", "1 while this node knows no cluster: it waits to be made one of one, or to join.", lambda _: 0),
    gauge("draining", "1 while the node shuts down.", lambda v: v.draining),
    gauge("leader", "1 when this node leads and its epoch is open.", lambda v: v.standing.leads),
    gauge(
        "leader_known", "1 when this node knows who leads.", lambda v: v.standing.leads or bool(v.standing.leader_id)
    ),
    gauge(
        "leader_contact_age_seconds",
        "How long ago this node last heard of a leader; 0 on the leader, absent when it never has.",
        lambda v: _seconds(v.contact_age_ms),
    ),
    gauge("leader_lease_seconds", "For how long nobody else can lead; 0 elsewhere.", lambda v: _seconds(v.lease_ms)),
    gauge("term", "Term of the logbook.", lambda v: v.standing.term),
    gauge("epoch", "Number of the leadership whose batches this node applies.", lambda v: v.standing.epoch),
    gauge("head_sequence", "Sequence of the last batch applied here.", lambda v: v.standing.head.sequence),
    gauge("log_first_index", "First entry of the log that is kept here.", lambda v: v.condition.log_first_index),
    gauge("log_last_index", "Last entry of the log here.", lambda v: v.condition.log_last_index),
    gauge("quarantined", "1 while this node may not vote: its directory was empty.", lambda v: v.standing.quarantined),
    gauge("fetching_rows", "1 while this node fetches all rows from the leader.", lambda v: bool(v.fetching_from)),
    Metric(
        "follower_connected",
        "gauge",
        "On the leader: 1 when a stream to the other node stands.",
        lambda v: [((one.node_id,), one.connected) for one in _followers(v)],
        ("peer",),
    ),
    Metric(
        "follower_lag_entries",
        "gauge",
        "On the leader: entries of the log that the other node surely lacks.",
        _log_behind,
        ("peer",),
    ),
    Metric(
        "follower_answer_age_seconds",
        "gauge",
        "On the leader: how long ago the other node last answered; absent before it has.",
        _answer_ages,
        ("peer",),
    ),
    Metric(
        "follower_free_bytes",
        "gauge",
        "On the leader: bytes that the other node can still write; absent before it has told.",
        _free_bytes,
        ("peer",),
    ),
    counter("elections_total", "Elections in which this node has stood.", lambda v: v.condition.elections),
    counter(
        "leader_changes_total", "How often another leader than before was seen.", lambda v: v.counters.leader_changes
    ),
)

WORK: Final = (
    Metric("jobs", "gauge", "On the leader: jobs by state, over all namespaces.", _jobs, ("state",)),
    Metric("waiting", "gauge", "What waits or is open on this node, by kind.", _waiting, ("kind",)),
    counter("commands_total", "Commands that were handed to the replica.", lambda v: v.counters.commands),
    counter("forwarded_total", "Commands that were sent on to the leader's node.", lambda v: v.counters.forwarded),
    Metric(
        "command_rejections_total",
        "counter",
        "Commands that were rejected, by reason.",
        lambda v: _tally(v.counters.rejections),
        ("reason",),
    ),
    Metric(
        "calls_total",
        "counter",
        "Calls that ended, by method and by how: OK, a reason of refusal, or GONE when the caller had left.",
        _calls,
        ("method", "code"),
    ),
    Metric(
        "shed_total",
        "counter",
        "Calls and submissions that were refused for want of room, by reason.",
        lambda v: _tally(v.counters.shed_by_reason),
        ("reason",),
    ),
    counter(
        "slow_streams_total",
        "Streams of agents and watchers that were closed because they did not read.",
        lambda v: v.counters.slow_streams,
    ),
    Metric("failures_total", "counter", "Where the software was wrong; alarm on any.", _failures, ("where",)),
    counter("steps_total", "Steps of the replica.", lambda v: v.counters.steps),
    counter("batches_total", "Batches that were applied.", lambda v: v.counters.batches),
    counter("rows_put_total", "Rows that batches put.", lambda v: v.counters.puts),
    counter("log_bytes_total", "Bytes of entries that were written to the log.", lambda v: v.counters.log_bytes),
    counter("flushes_total", "Flushes of the store to disk.", lambda v: v.counters.flushes),
)

SUPERVISION: Final = (
    gauge(
        "supervision_health",
        "How supervision is, as this node sees it: 1 well, 2 warning, 3 critical.",
        lambda v: v.supervision(v.findings).health,
    ),
    gauge(
        "supervision_silence_seconds",
        "For how long this node has applied no sign of life of a supervisor, wherever that runs; before the first one, "
        "since the process started.",
        lambda v: _seconds(v.silent_ms),
    ),
    gauge(
        "supervisor_beat_age_seconds",
        "How long ago this node applied a sign of life of the supervisor, wherever it runs; absent before the first.",
        lambda v: _seconds(v.beat_age_ms),
    ),
    gauge(
        "supervision_epochs_lost",
        "Leaderships of the last minute that have lost their supervisor.",
        lambda v: v.findings.epochs_lost,
    ),
    gauge(
        "supervision_stays",
        "1 when so many have that leadership moves no more for it; nothing is remedied.",
        lambda v: v.findings.stays,
    ),
    gauge(
        "supervisor_running",
        "On the leader: 1 while the supervisor of this leadership is at work.",
        lambda v: v.supervises() if v.standing.leads else None,
    ),
    gauge("due", "Timers that are due by the rows and the clock of this node.", lambda v: v.findings.due.due),
    Metric(
        "overdue",
        "gauge",
        "Those that a supervisor at work would have dealt with, by what they are about; the oldest 200.",
        lambda v: [((kind,), v.findings.due.by_kind.get(kind, 0)) for kind in KINDS],
        ("kind",),
    ),
    gauge(
        "overdue_oldest_seconds",
        "For how long the oldest of these has been due; 0 when there is none.",
        lambda v: v.findings.due.oldest_ms / 1_000,
    ),
    Metric(
        "remediations_total",
        "counter",
        "Remedies in the ledger that this node has applied since it started, whoever led: what was wrong, what was "
        "done, and what led to it. All nodes count the same ones: take the maximum.",
        lambda v: list(dict(v.counters.remedies).items()),
        ("trouble", "remedy", "by"),
    ),
    gauge("brake_on", "1 while the brake holds remedies back.", lambda v: v.findings.brake.on is not None),
    gauge("brake_held", "Remedies that it held back at the last sign of life.", lambda v: v.findings.held),
    Metric(
        "breaker_open",
        "gauge",
        "1 for each action that is not offered, or as a probe only, since it failed so often.",
        lambda v: [((one.namespace, one.queue, one.action), 1) for one in v.findings.breakers],
        ("namespace", "queue", "action"),
    ),
    gauge("incidents_open", "Incidents that wait for a person.", lambda v: v.findings.incidents_open),
    gauge(
        "detection_latency_max_seconds",
        "The most by which a supervisor came late to what was due, in the leadership of the last sign of life.",
        lambda v: None if v.beat is None else v.beat.late_ms_max / 1_000,
    ),
    gauge(
        "supervisor_overdue",
        "Timers that were due and not handled at that sign of life.",
        lambda v: None if v.beat is None else v.beat.overdue,
    ),
    counter(
        "detections_late_total",
        "What this node's supervisor noticed more than 2 s after it had fallen due.",
        lambda v: v.counters.detections_late,
    ),
    counter("sweeps_total", "Sweeps of this node's supervisor.", lambda v: v.counters.sweeps),
    counter(
        "sweeps_refused_total",
        "Sweeps that could not be decided for want of room.",
        lambda v: v.counters.sweeps_refused,
    ),
    counter("swept_total", "Due subjects that sweeps handled.", lambda v: v.counters.swept),
    counter(
        "notices_sent_total",
        "Notices of incidents that the webhook took from this node.",
        lambda v: v.counters.notices_sent,
    ),
    counter(
        "notices_given_up_total",
        "Notices that were never sent: refused too often, too old, or too many; alarm on any.",
        lambda v: v.counters.notices_given_up,
    ),
    counter(
        "webhook_failures_total", "Requests to the webhook that went wrong.", lambda v: v.counters.webhook_failures
    ),
    counter("canaries_total", "Canaries that this node's own agent has worked on.", lambda v: v.counters.canaries),
    counter("jobs_purged_total", "Ended jobs that were removed after their time.", lambda v: v.counters.purged),
    counter(
        "jobs_stuck_total", "Jobs found with nothing left to move them; alarm on any.", lambda v: v.counters.jobs_stuck
    ),
)

PEERS: Final = (
    counter("frames_sent_total", "Messages to other nodes.", lambda v: v.counters.frames_sent),
    counter("frames_received_total", "Messages from other nodes.", lambda v: v.counters.frames_received),
    counter("frames_dropped_total", "Messages that no stream could take.", lambda v: v.counters.frames_dropped),
    counter("frames_refused_total", "Messages that could not be read.", lambda v: v.counters.frames_refused),
    counter("links_lost_total", "Streams that ended, or could not be made.", lambda v: v.counters.links_lost),
    counter("hellos_refused_total", "Streams of others that did not fit.", lambda v: v.counters.hellos_refused),
    counter("frame_bytes_sent_total", "Their bytes.", lambda v: v.counters.frame_bytes_sent),
    counter("frame_bytes_received_total", "Their bytes.", lambda v: v.counters.frame_bytes_received),
    counter("rows_fetched_total", "Rows that were fetched from the leader.", lambda v: v.counters.rows_fetched),
    counter("fetches_total", "Times that all rows were fetched and taken over.", lambda v: v.counters.fetches),
    counter("fetches_failed_total", "Fetches that failed and were begun again.", lambda v: v.counters.fetches_failed),
    counter("rows_exported_total", "Rows that were given to other nodes.", lambda v: v.counters.rows_exported),
    counter("exports_total", "Times that all rows were given to another node.", lambda v: v.counters.exports),
)

DISK: Final = (
    gauge("disk_free_bytes", "Bytes that can still be written.", lambda v: v.free_bytes),
    gauge(
        "disk_full",
        "1 while this node takes no new entries of its leader, since its disk is nearly full.",
        lambda v: not v.standing.takes_entries,
    ),
    gauge("store_bytes", "Bytes of the store's file.", lambda v: v.data_file.stat().st_size),
)

METRICS: Final = (*STANDING, *WORK, *SUPERVISION, *PEERS, *DISK)

SPREADS: Final = (
    Spread("flush_seconds", "How long flushes took.", lambda v: v.counters.flush_s),
    Spread("step_seconds", "How long steps took that had something to do.", lambda v: v.counters.step_s),
    Spread(
        "detection_seconds",
        "How long what this node's supervisor judged had been due.",
        lambda v: v.counters.detection_s,
    ),
)


class Collector:
    """Reads the table for one node."""

    def __init__(self, vitals: Vitals) -> None:
        self._vitals = vitals

    def collect(self) -> Iterator[Family]:
        """Called by the registry at each scrape, on the thread of the scrape."""
        vitals = self._vitals.of_this_moment()
        for metric in METRICS:
            yield _family(metric, vitals)
        for spread in SPREADS:
            yield _histogram(spread, spread.read(self._vitals))


def _family(metric: Metric, vitals: Vitals) -> Family:
    type_ = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = type_(PREFIX + metric.name, metric.help, labels=metric.labels)
    for labels, value in metric.read(vitals):
        family.add_metric(labels, value)
    return family


def _histogram(spread: Spread, histogram: Histogram) -> Family:
    family = HistogramMetricFamily(PREFIX + spread.name, spread.help)
    counts, total, buckets = list(histogram.counts), 0, []
    for bound_s, count in zip((*map(str, histogram.bounds_s), "+Inf"), counts, strict=True):
        total += count
        buckets.append((bound_s, float(total)))
    family.add_metric((), buckets, histogram.sum_s)
    return family


class Beginnings:
    """What a scrape gets of a process that is no node of a cluster yet: who it is, and that it waits."""

    def __init__(self, node_id: str, version: str, *, is_empty: Callable[[], bool]) -> None:
        self._who = ("", node_id, version)
        self._is_empty = is_empty
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def collect(self) -> Iterator[Family]:
        """Called by the registry at each scrape, on the thread of the scrape."""
        known: dict[str, Sample] = {
            "node": (self._who, 1),
            "empty": ((), self._is_empty()),
            "healthy": ((), True),
            "ready": ((), False),
            "draining": ((), False),
            "leader": ((), False),
            "leader_known": ((), False),
        }
        for metric in STANDING:
            if metric.name in known:
                family = GaugeMetricFamily(PREFIX + metric.name, metric.help, labels=metric.labels)
                family.add_metric(*known[metric.name])
                yield family

    def text(self) -> bytes:
        """In the text format of Prometheus. Any thread may ask."""
        return generate_latest(self._registry)


class Exposition:
    """What a scrape of one node gets."""

    def __init__(self, vitals: Vitals) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(Collector(vitals))
        # CPU, memory and open files of the process, under the names that Prometheus gives them everywhere.
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """In the text format of Prometheus. Any thread may ask."""
        return generate_latest(self._registry)
