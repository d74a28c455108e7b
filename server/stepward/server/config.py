"""What a node is told when it starts: what must be equal on all nodes of a cluster, and what may differ.

Every field has its unit in its name, its bound below, and its reason beside it. `__main__` alone reads the command
line and the environment.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from stepward.server import http_post, placement, webhook_signature
from stepward.server.core.limits import Limits
from stepward.server.logbook.outbox import ReplicaLimits

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_PORT = 7654
# What a node of a cluster of one is called that was not told.
DEFAULT_NODE_ID = "n1"
# What another node may say of its configuration, and how much of that is told to a person.
CONFIGURATION_BYTES_MAX: Final = 1 << 16
DIFFERENCES_MAX: Final = 8
_TOLD_CHARS_MAX: Final = 64
# One frame between nodes: some entries of the log, of which the largest holds one batch at its bound.
FRAME_BYTES_MAX = 4 * ReplicaLimits().batch_bytes_max


class ConfigError(Exception):
    """A field is out of its bounds. The message names the field, the value and the bound."""

    def __init__(self, field: str, value: object, rule: str) -> None:
        super().__init__(f"{field} is {value}; {rule}")
        self.field = field
        self.value = value
        self.rule = rule


class ClusterConfig(Struct, frozen=True):
    """What must be equal on all nodes: any of them may come to decide."""

    # Bounds and defaults of the rules.
    limits: Limits = Limits()

    def fingerprint(self) -> bytes:
        """The same on two nodes if and only if all of it is equal; they compare it when they meet."""
        return hashlib.sha256(self.encoded()).digest()

    def encoded(self) -> bytes:
        """All of it, as another node is told."""
        return msgspec.msgpack.encode(self, order="deterministic")

    @property
    def message_bytes_max(self) -> int:
        """Largest message of a call: a bulk of submissions or reports, which hold one payload or many small ones.

        Sixteen payloads, and never below gRPC's own 4 MiB, which clients in other languages send without being told.
        """
        return max(4 * 1024 * 1024, 16 * self.limits.payload_bytes_max)


class Difference(NamedTuple):
    """A field that two nodes are configured differently in, with both values as they are told to a person."""

    field: str
    ours: str
    theirs: str


def differences(ours: bytes, theirs: bytes) -> list[Difference]:
    """Where two encoded configurations differ, as far as it is told; none when one cannot be read."""
    if max(len(ours), len(theirs)) > CONFIGURATION_BYTES_MAX:
        return []
    try:
        mine, other = _fields_of(ours), _fields_of(theirs)
    except msgspec.DecodeError:
        # It comes from a node that is refused in any case; that it cannot be read is no news then.
        return []
    found = [
        Difference(name[:_TOLD_CHARS_MAX], _told(mine, name), _told(other, name))
        for name in sorted(mine.keys() | other.keys())
        if mine.get(name) != other.get(name)
    ]
    return found[:DIFFERENCES_MAX]


_Value: TypeAlias = int | float | str | None
_decode_configuration: Final = msgspec.msgpack.Decoder(dict[str, dict[str, _Value]]).decode


def _fields_of(encoded: bytes) -> dict[str, _Value]:
    return {name: value for fields in _decode_configuration(encoded).values() for name, value in fields.items()}


def _told(fields: Mapping[str, _Value], name: str) -> str:
    return str(fields[name])[:_TOLD_CHARS_MAX] if name in fields else "unknown"


class TlsFiles(Struct, frozen=True, kw_only=True):
    """Files in PEM with which a node shows who it is, to the other nodes and to clients, and knows who they are."""

    # Whoever this authority has signed is let in.
    ca: Path
    # Names the node by the URI `stepward://node/ID` among its alternative names, and where it is reached by the others.
    certificate: Path
    key: Path


class NodeConfig(Struct, frozen=True, kw_only=True):
    """What may differ from node to node."""

    # Holds everything that the node must not lose.
    data: Path
    # Its own id: a key of `nodes`, where there are several.
    node_id: str = DEFAULT_NODE_ID
    # All nodes of the cluster, this one too, by id: where each is reached by the others. Empty: there is this one only.
    # A node that moves may be told first here and then there, so it does not belong to what must be equal.
    nodes: Mapping[str, str] = msgspec.field(default_factory=dict)
    # Where callers are told to find this node, if not where the other nodes do.
    advertise: str = ""
    # Between nodes and to clients. Absent: everything travels open.
    tls: TlsFiles | None = None
    # Where metrics and health are served, and on which port (0: any free one, None: nowhere).
    http_host: str = "127.0.0.1"
    http_port: int | None = 0
    # Where calls are served. Loopback unless asked otherwise: there is no access control yet.
    host: str = "127.0.0.1"
    # 0: any free port, which the ready line tells.
    port: int = DEFAULT_PORT
    # Without TLS other nodes are only taken from this machine, unless whoever runs them vouches for the network.
    trusted_network: bool = False
    # How long a stream to another node may take to be made.
    peer_connect_ms_max: int = 1_000
    # How long to wait before it is made again: the first time, and at most. Cheap enough to be back within a second.
    peer_backoff_ms_min: int = 50
    peer_backoff_ms_max: int = 1_000
    # A stream to another node on which nothing is sent says so often that it stands.
    peer_beat_ms: int = 250
    # After so long without a word the connection to another node is taken for half-open, and made anew.
    peer_silence_ms_max: int = 1_500
    # After so long without a word another node is gone, and one with an empty directory may come under its id. Longer
    # than a restart takes, so that one that is started by mistake meanwhile does not take its place.
    peer_gone_ms: int = 5_000
    # How long another node that speaks may leave what was sent unread.
    peer_stalled_ms_max: int = 5_000
    # What may wait for one other node; beyond it the stream is closed, and the logbook begins anew on the next one.
    peer_frames_waiting_max: int = 10_000
    peer_bytes_waiting_max: int = 2 * FRAME_BYTES_MAX
    # Submissions that may wait for a decision. More than some seconds' worth only makes answers late. One namespace
    # alone may hold half of it: the other half is for others.
    submissions_waiting_max: int = 20_000
    # What they carry, together: the bound that holds when each one is large. A namespace alone may hold half, too.
    submission_bytes_waiting_max: int = 64 * 1024 * 1024
    # Free disk below which new submissions are refused. The replica stops everything at 32 MiB; what is between is for
    # the outcomes, renewals and undos of jobs that exist.
    free_bytes_for_submissions_min: int = 96 * 1024 * 1024
    # When whoever was shed should come back, where nothing was measured that would say it better.
    overload_retry_after_ms: int = 500
    # What a measured delay is held between: sooner costs more calls than it saves, later forgets the caller.
    overload_retry_ms_min: int = 50
    overload_retry_ms_max: int = 10_000
    # How long commands gather for one batch under load, at most. Longer costs latency and wins nothing more.
    gather_ms_max: float = 4.0
    # The same where the disk is slow: a few times a flush, so that calls are taken in meanwhile.
    gather_ms_max_slow: float = 50.0
    # How long heartbeats gather for one batch while nothing else is decided: on the node that they come to, and again
    # on the one that leads. Both together are below a sixth of the smallest TTL, the time between two of them.
    gather_renewals_ms: float = 50.0
    # Bytes that may wait for an agent, or a watcher, that does not read. Twice the largest set of offers is normal.
    stream_bytes_waiting_max: int = 16 * 1024 * 1024
    # How long a call waits for a leader, when none is known: an election takes less, and its caller has other nodes.
    leader_wait_ms_max: int = 1_500
    # How far this node may be behind the leader and still answer: its callers are served better elsewhere.
    behind_ms_max: int = 3_000
    # Commands that may wait for the leader. Admission stands in front of this; here is only the last wall.
    forwarded_waiting_max: int = 100_000
    # Agents' streams that may be open at once.
    streams_max: int = 10_000
    # LeaseWork calls that may wait at once, of agents without streaming.
    lease_waits_max: int = 10_000
    # Reports that may wait to be recorded at once, in bytes: of agents with a stream, and as much again of those
    # without. A stream of which none wait is read all the same.
    report_bytes_waiting_max: int = 64 * 1024 * 1024
    # Heartbeats of one stream that may wait for an answer. More come from an agent that floods; silence is safe.
    heartbeats_waiting_max: int = 8
    # Calls that may wait for the end of a job at once. Each holds 16 KiB.
    waiters_max: int = 20_000
    # Callers that may follow jobs at once. Each costs a read of its job for every change.
    watchers_max: int = 10_000
    # Calls in progress at once that read: an answer of some MiB is in memory until its caller has read it.
    reads_max: int = 1_000
    # Those that agents and operators make, with cancels and questions after the status. They have a room of their own.
    calls_reserved_max: int = 10_000
    # All other calls in progress: those that submit, wait or watch, with what has bounds of its own above.
    calls_max: int = 40_000
    # Connections that may be open at once. Agents keep one each.
    connections_max: int = 20_000
    # How long a caller who follows a job may leave what was sent unread. It is then in his way only: he can resume.
    stalled_ms_max: int = 30_000
    # Calls of one connection at the same time: many waiting RunJob calls share one.
    concurrent_streams_max: int = 10_000
    # Size of a call's metadata, so that headers cannot fill the memory.
    metadata_bytes_max: int = 16 * 1024
    # How long a connection may take to be made: half a handshake must not hold a socket.
    handshake_timeout_ms: int = 5_000
    # Clients ping every 10 s, also without calls. Gaps below this are punished, with room for bad clocks.
    ping_interval_ms_min: int = 5_000
    # Our own pings find out that a peer is gone without a word.
    keepalive_ms: int = 10_000
    keepalive_timeout_ms: int = 5_000
    # How long calls may go on after the request to stop.
    stop_grace_ms: int = 5_000
    # A flush that takes longer means a disk that is gone; the process ends so that another node may lead.
    flush_ms_max: int = 10_000
    # Who is told of incidents ("": nobody), and the file with the secret that signs what he is told.
    webhook_url: str = ""
    webhook_secret_file: Path | None = None
    # How long a request to it may take, and how long is waited before another: from the first to the longest.
    webhook_timeout_ms: int = 10_000
    webhook_wait_ms_min: int = 1_000
    webhook_wait_ms_max: int = 60_000
    # How often he may refuse a request before it is given up, so that one that he cannot take does not hold the others.
    webhook_tries_max: int = 10
    # How long a notice is of use: a day. Silence is borne for so long.
    webhook_age_ms_max: int = 86_400_000

    @property
    def peers(self) -> dict[str, str]:
        """Where the other nodes are reached, by id."""
        return {node_id: address for node_id, address in self.nodes.items() if node_id != self.node_id}


class Bound(NamedTuple):
    """What a field may be, both ends included."""

    field: str
    least: float
    most: float


# A session must outlive a few heartbeats, and a lost agent must be noticed before everyone has gone home.
SESSION_TTL_BOUND = Bound("session_ttl_ms", 1_000, 3_600_000)
# With several nodes it must outlive a failover as well: a leader is missed after a second, and elected in another.
SESSION_TTL_MS_MIN_NODES = 8_000
# Nobody can read what became of a job that is removed at once; ten years are as good as for ever.
RETENTION_BOUND = Bound("retention_ms", 1_000, 3_650 * 86_400_000)

NODE_BOUNDS = (
    Bound("port", 0, 65_535),
    Bound("http_port", 0, 65_535),
    Bound("peer_connect_ms_max", 50, 60_000),
    Bound("peer_backoff_ms_min", 1, 1_000),
    Bound("peer_backoff_ms_max", 1, 60_000),
    Bound("peer_beat_ms", 10, 10_000),
    Bound("peer_silence_ms_max", 100, 60_000),
    Bound("peer_gone_ms", 100, 600_000),
    Bound("peer_stalled_ms_max", 100, 60_000),
    Bound("peer_frames_waiting_max", 1, 1_000_000),
    Bound("peer_bytes_waiting_max", 1, 1 << 33),
    Bound("submissions_waiting_max", 1, 1_000_000),
    Bound("submission_bytes_waiting_max", 1, 1 << 33),
    Bound("free_bytes_for_submissions_min", 0, 1 << 50),
    Bound("overload_retry_after_ms", 1, 60_000),
    Bound("overload_retry_ms_min", 1, 60_000),
    Bound("overload_retry_ms_max", 1, 600_000),
    Bound("gather_ms_max", 0, 100),
    Bound("gather_ms_max_slow", 0, 1_000),
    Bound("gather_renewals_ms", 0, 50),
    Bound("stream_bytes_waiting_max", 1, 1 << 30),
    Bound("leader_wait_ms_max", 1, 60_000),
    Bound("behind_ms_max", 1, 60_000),
    Bound("forwarded_waiting_max", 1, 10_000_000),
    Bound("streams_max", 1, 1_000_000),
    Bound("lease_waits_max", 1, 1_000_000),
    Bound("report_bytes_waiting_max", 1, 1 << 33),
    Bound("heartbeats_waiting_max", 1, 1_000),
    Bound("waiters_max", 1, 10_000_000),
    Bound("watchers_max", 1, 1_000_000),
    Bound("reads_max", 1, 1_000_000),
    Bound("calls_reserved_max", 1, 1_000_000),
    Bound("calls_max", 1, 10_000_000),
    Bound("connections_max", 1, 1_000_000),
    Bound("stalled_ms_max", 100, 3_600_000),
    Bound("concurrent_streams_max", 1, 1_000_000),
    Bound("metadata_bytes_max", 1_024, 1 << 20),
    Bound("handshake_timeout_ms", 100, 120_000),
    Bound("ping_interval_ms_min", 100, 10_000),
    Bound("keepalive_ms", 1_000, 7_200_000),
    Bound("keepalive_timeout_ms", 100, 60_000),
    Bound("stop_grace_ms", 0, 60_000),
    Bound("flush_ms_max", 100, 600_000),
    Bound("webhook_timeout_ms", 100, 60_000),
    Bound("webhook_wait_ms_min", 10, 60_000),
    Bound("webhook_wait_ms_max", 10, 3_600_000),
    Bound("webhook_tries_max", 1, 1_000),
    Bound("webhook_age_ms_max", 1_000, 30 * 86_400_000),
)


def check(cluster: ClusterConfig, node: NodeConfig) -> None:
    """Check every field and the relations between them.

    Raises:
        ConfigError: The first one that is wrong.
    """
    for problem in problems(cluster, node):
        raise problem


def problems(cluster: ClusterConfig, node: NodeConfig) -> Iterator[ConfigError]:
    """Everything that is wrong, field by field; relations only between fields that are right by themselves."""
    wrong = [
        *_out_of_bounds(cluster.limits, (SESSION_TTL_BOUND, RETENTION_BOUND)),
        *_out_of_bounds(node, NODE_BOUNDS),
        *(ConfigError(*fault) for fault in placement.faults(node)),
        *_tls_problems(node),
        *_webhook_problems(node),
    ]
    yield from wrong
    blamed = {problem.field for problem in wrong}
    for problem in (*_relations(cluster, node), *(ConfigError(*fault) for fault in placement.mismatches(node))):
        if problem.field not in blamed:
            yield problem


def _out_of_bounds(holder: object, bounds: tuple[Bound, ...]) -> Iterator[ConfigError]:
    for bound in bounds:
        value = getattr(holder, bound.field)
        if value is not None and not bound.least <= value <= bound.most:
            yield ConfigError(bound.field, value, f"it must be between {bound.least} and {bound.most}")


def _tls_problems(node: NodeConfig) -> Iterator[ConfigError]:
    """Files that cannot be read; what stands in them is found out when they are used."""
    if node.tls is None:
        return
    for name in TlsFiles.__struct_fields__:
        path: Path = getattr(node.tls, name)
        try:
            with path.open("rb") as file:
                file.read(1)
        except OSError as error:
            yield ConfigError(f"tls.{name}", path, f"it must be a file that can be read: {error.strerror}")


def _webhook_problems(node: NodeConfig) -> Iterator[ConfigError]:
    """An address and a secret, both or neither; what can be looked at beforehand is."""
    url, path = node.webhook_url, node.webhook_secret_file
    if url:
        try:
            http_post.parse_url(url)
        except ValueError as error:
            yield ConfigError("webhook_url", repr(url), str(error))
    if bool(url) is not (path is not None):
        field = "webhook_secret_file" if url else "webhook_url"
        yield ConfigError(field, "missing", "it must be there with the other one: what is sent is signed")
    if path is not None:
        try:
            webhook_signature.read_secret(path)
        except OSError as error:
            rule = f"it must be a file that can be read: {error.strerror}"
            yield ConfigError("webhook_secret_file", path, rule)
        except ValueError as error:
            yield ConfigError("webhook_secret_file", path, str(error))


def _relations(cluster: ClusterConfig, node: NodeConfig) -> Iterator[ConfigError]:
    limits = cluster.limits
    if len(node.nodes) > 1 and limits.session_ttl_ms < SESSION_TTL_MS_MIN_NODES:
        rule = f"with several nodes it must be at least {SESSION_TTL_MS_MIN_NODES}, or a change of leader ends sessions"
        yield ConfigError("session_ttl_ms", limits.session_ttl_ms, rule)
    if node.overload_retry_ms_min > node.overload_retry_ms_max:
        rule = f"it must be at most overload_retry_ms_max, {node.overload_retry_ms_max}"
        yield ConfigError("overload_retry_ms_min", node.overload_retry_ms_min, rule)
    if node.peer_backoff_ms_min > node.peer_backoff_ms_max:
        rule = f"it must be at most peer_backoff_ms_max, {node.peer_backoff_ms_max}"
        yield ConfigError("peer_backoff_ms_min", node.peer_backoff_ms_min, rule)
    if node.webhook_wait_ms_min > node.webhook_wait_ms_max:
        rule = f"it must be at most webhook_wait_ms_max, {node.webhook_wait_ms_max}"
        yield ConfigError("webhook_wait_ms_min", node.webhook_wait_ms_min, rule)
    # A definition counts twice: as it came and as it is decided.
    largest = 2 * max(cluster.message_bytes_max, limits.definition_bytes_max)
    for field, least, reason in (
        (
            "stream_bytes_waiting_max",
            2 * limits.payload_bytes_max,
            "twice payload_bytes_max, or an offer may never fit",
        ),
        ("submission_bytes_waiting_max", largest, "twice the largest call, or one may never get in"),
        ("peer_silence_ms_max", 4 * node.peer_beat_ms, "four times peer_beat_ms, or a late beat looks like an end"),
        ("peer_gone_ms", node.peer_silence_ms_max, "peer_silence_ms_max, or a node that is only slow counts as gone"),
        ("peer_bytes_waiting_max", 2 * FRAME_BYTES_MAX, "twice the largest frame, or one may never get through"),
        ("submissions_waiting_max", 2 * limits.submissions_max, "twice submissions_max, or one call may never get in"),
    ):
        value = getattr(node, field)
        if value < least:
            yield ConfigError(field, value, f"it must be at least {least}, {reason}")
