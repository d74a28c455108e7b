"""Every field has bounds, each tested at the bound and one past it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stepward.server import arguments, config
from stepward.server.addresses import ADDRESS_RULE
from stepward.server.config import Bound, ClusterConfig, ConfigError, NodeConfig
from stepward.server.core.limits import Limits

CLUSTER = ClusterConfig()
NODE = NodeConfig(data=Path("data"))
# What must keep a relation to another field as well, which has a test of its own.
RELATED_LEAST = {
    "peer_backoff_ms_max",
    "peer_bytes_waiting_max",
    "peer_gone_ms",
    "peer_silence_ms_max",
    "stream_bytes_waiting_max",
    "submissions_waiting_max",
    "submission_bytes_waiting_max",
    "overload_retry_ms_max",
    "webhook_wait_ms_max",
}
RELATED_MOST = {
    "overload_retry_ms_min",
    "webhook_wait_ms_min",
    "peer_backoff_ms_min",
    "peer_beat_ms",
    "peer_silence_ms_max",
}


def test_defaults_keep_their_bounds() -> None:
    """A node that is told nothing starts."""
    config.check(CLUSTER, NODE)


def test_every_number_has_a_bound() -> None:
    """A field without one could be set to nonsense that shows itself much later."""
    numbers = {name for name in NODE.__struct_fields__ if type(getattr(NODE, name)) in (int, float)}

    assert {bound.field for bound in config.NODE_BOUNDS} == numbers


@pytest.mark.parametrize("bound", config.NODE_BOUNDS, ids=lambda bound: bound.field)
def test_node_field_at_its_bounds_and_past_them(bound: Bound) -> None:
    """The error names the field, the value and the bound."""
    for value, related in ((bound.least, RELATED_LEAST), (bound.most, RELATED_MOST)):
        if bound.field not in related:
            config.check(CLUSTER, msgspec.structs.replace(NODE, **{bound.field: value}))
    for value in (bound.least - 1, bound.most + 1):
        with pytest.raises(ConfigError, match=f"^{bound.field} is {value}; it must be between") as caught:
            config.check(CLUSTER, msgspec.structs.replace(NODE, **{bound.field: value}))
        assert caught.value.field == bound.field


@pytest.mark.parametrize("bound", [config.RETENTION_BOUND])
def test_retention(bound: Bound) -> None:
    """Long enough to ask what became of a job."""
    for value in (bound.least, bound.most):
        config.check(ClusterConfig(limits=Limits(retention_ms=int(value))), NODE)
    for value in (bound.least - 1, bound.most + 1):
        with pytest.raises(ConfigError, match=f"^retention_ms is {value}; it must be between"):
            config.check(ClusterConfig(limits=Limits(retention_ms=int(value))), NODE)


@pytest.mark.parametrize(
    ("text", "ms"), [("7d", 604_800_000), ("36h", 129_600_000), ("90m", 5_400_000), ("30s", 30_000), ("1500ms", 1_500)]
)
def test_a_duration_of_the_command_line(text: str, ms: int) -> None:
    """A whole number and a unit."""
    assert arguments.parser().parse_args(["dev", "--data", "d", f"--retention={text}"]).retention == ms


@pytest.mark.parametrize("text", ["7", "d", "-7d", "1.5h", "7 d", "7w", ""])
def test_what_is_no_duration(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is told with its value, and what to write."""
    with pytest.raises(SystemExit):
        arguments.parser().parse_args(["dev", "--data", "d", f"--retention={text}"])

    assert f"{text!r} is not a duration" in capsys.readouterr().err


@pytest.mark.parametrize(("ttl_ms", "good"), [(999, False), (1_000, True), (3_600_000, True), (3_600_001, False)])
def test_session_ttl(ttl_ms: int, good: bool) -> None:
    """Long enough for a few heartbeats, short enough to notice a lost agent."""
    cluster = ClusterConfig(limits=Limits(session_ttl_ms=ttl_ms))
    if good:
        config.check(cluster, NODE)
        return
    with pytest.raises(ConfigError, match="session_ttl_ms"):
        config.check(cluster, NODE)


def test_stream_holds_two_payloads() -> None:
    """An offer with the largest input must fit beside another."""
    largest = 2 * CLUSTER.limits.payload_bytes_max
    config.check(CLUSTER, msgspec.structs.replace(NODE, stream_bytes_waiting_max=largest))

    with pytest.raises(ConfigError, match="twice payload_bytes_max"):
        config.check(CLUSTER, msgspec.structs.replace(NODE, stream_bytes_waiting_max=largest - 1))


@pytest.mark.parametrize(
    ("field", "least"),
    [
        ("submission_bytes_waiting_max", 2 * CLUSTER.message_bytes_max),
        ("submissions_waiting_max", 2 * CLUSTER.limits.submissions_max),
    ],
)
def test_largest_call_gets_in(field: str, least: int) -> None:
    """Whatever its own bound lets pass must find room when nothing else waits."""
    config.check(CLUSTER, msgspec.structs.replace(NODE, **{field: least}))

    with pytest.raises(ConfigError, match=f"{field} is {least - 1}; it must be at least {least}"):
        config.check(CLUSTER, msgspec.structs.replace(NODE, **{field: least - 1}))


@pytest.mark.parametrize(
    ("field", "fields", "good"),
    [
        ("peer_silence_ms_max", {"peer_silence_ms_max": 1_000}, True),
        ("peer_silence_ms_max", {"peer_silence_ms_max": 999}, False),
        ("peer_gone_ms", {"peer_gone_ms": 1_500}, True),
        ("peer_gone_ms", {"peer_gone_ms": 1_499}, False),
        ("peer_bytes_waiting_max", {"peer_bytes_waiting_max": 2 * config.FRAME_BYTES_MAX}, True),
        ("peer_bytes_waiting_max", {"peer_bytes_waiting_max": 2 * config.FRAME_BYTES_MAX - 1}, False),
        ("peer_backoff_ms_min", {"peer_backoff_ms_min": 700, "peer_backoff_ms_max": 700}, True),
        ("peer_backoff_ms_min", {"peer_backoff_ms_min": 701, "peer_backoff_ms_max": 700}, False),
    ],
)
def test_streams_to_other_nodes(field: str, fields: dict[str, int], good: bool) -> None:
    """One frame fits, a beat may be late, and the longest wait is the longest."""
    node = msgspec.structs.replace(NODE, **fields)
    if good:
        config.check(CLUSTER, node)
        return
    with pytest.raises(ConfigError, match=rf"^{field} is {fields[field]}; it must be at (least|most) ") as caught:
        config.check(CLUSTER, node)
    assert caught.value.field == field


@pytest.mark.parametrize(("least_ms", "good"), [(10_000, True), (10_001, False)])
def test_delays_have_a_range(least_ms: int, good: bool) -> None:
    """The lower bound is not above the upper one."""
    node = msgspec.structs.replace(NODE, overload_retry_ms_min=least_ms)
    if good:
        config.check(CLUSTER, node)
        return
    with pytest.raises(ConfigError, match="overload_retry_ms_min is 10001; it must be at most"):
        config.check(CLUSTER, node)


THREE = {"n1": "127.0.0.1:7654", "n2": "127.0.0.1:2", "n3": "[::1]:65535"}


def complaints(node: NodeConfig, cluster: ClusterConfig = CLUSTER) -> list[str]:
    return [str(problem) for problem in config.problems(cluster, node)]


def test_three_nodes() -> None:
    """Each knows the others by id."""
    node = msgspec.structs.replace(NODE, node_id="n2", nodes=THREE, port=2)

    assert complaints(node) == []
    assert node.peers == {"n1": "127.0.0.1:7654", "n3": "[::1]:65535"}


@pytest.mark.parametrize(
    ("node_id", "good"),
    [("a", True), ("z-9", True), ("x" * 32, True), ("x" * 33, False), ("", False), ("N1", False), ("n_1", False)],
)
def test_node_ids(node_id: str, good: bool) -> None:
    """They stand in certificates, file names and tables."""
    found = complaints(msgspec.structs.replace(NODE, node_id=node_id))

    assert found == ([] if good else [f"node_id is {node_id!r}; it must be 1 to 32 of a to z, 0 to 9 and -"])


def test_everything_that_is_wrong_is_told_at_once() -> None:
    """Whoever mends a file wants to mend it once."""
    node = msgspec.structs.replace(
        NODE,
        node_id="n4",
        nodes={"n1": "127.0.0.1:1", "n2": "127.0.0.1:1", "N3": "there"},
        advertise="here",
        port=-1,
        tls=config.TlsFiles(ca=Path("/nowhere/ca"), certificate=Path(__file__), key=Path(__file__).parent),
    )

    assert complaints(node, ClusterConfig(limits=Limits(session_ttl_ms=7_999, retention_ms=0))) == [
        "retention_ms is 0; it must be between 1000 and 315360000000",
        "port is -1; it must be between 0 and 65535",
        f"advertise is 'here'; {ADDRESS_RULE}",
        "node_id is 'n4'; it must be one of nodes: N3, n1, n2",
        "nodes.n2 is 127.0.0.1:1; it must be another than that of n1",
        "nodes.N3 is 'N3'; it must be 1 to 32 of a to z, 0 to 9 and -",
        f"nodes.N3 is 'there'; {ADDRESS_RULE}",
        "tls.ca is /nowhere/ca; it must be a file that can be read: No such file or directory",
        f"tls.key is {Path(__file__).parent}; it must be a file that can be read: Is a directory",
        "session_ttl_ms is 7999; with several nodes it must be at least 8000, or a change of leader ends sessions",
    ]


@pytest.mark.parametrize(("ttl_ms", "good"), [(7_999, False), (8_000, True)])
def test_session_ttl_of_several_nodes(ttl_ms: int, good: bool) -> None:
    """A failover must not end a session that would go on."""
    node = msgspec.structs.replace(NODE, nodes=THREE)

    assert (complaints(node, ClusterConfig(limits=Limits(session_ttl_ms=ttl_ms))) == []) is good
    assert complaints(NODE, ClusterConfig(limits=Limits(session_ttl_ms=7_999))) == []


def test_fingerprint_shows_any_difference() -> None:
    """Two nodes with different rules would come to different decisions."""
    other = ClusterConfig(limits=Limits(retention_ms=CLUSTER.limits.retention_ms + 1))

    assert CLUSTER.fingerprint() == ClusterConfig().fingerprint()
    assert CLUSTER.fingerprint() != other.fingerprint()


def test_pages_for_monitoring_may_be_off() -> None:
    """No port is a choice, too."""
    assert complaints(msgspec.structs.replace(NODE, http_port=None)) == []


def with_webhook(folder: Path, url: str = "https://example.org/hook", secret: bytes = b"x" * 16) -> NodeConfig:
    """A node that tells of incidents."""
    path = folder / "secret"
    path.write_bytes(secret)
    return msgspec.structs.replace(NODE, webhook_url=url, webhook_secret_file=path)


@pytest.mark.parametrize("size", [16, 4_096])
def test_who_is_told_of_incidents(tmp_path: Path, size: int) -> None:
    """An address, and a secret at either of its bounds; a newline at its end is none of it."""
    config.check(CLUSTER, with_webhook(tmp_path, secret=b"x" * size + b"\n"))


@pytest.mark.parametrize(
    ("url", "secret", "field", "rule"),
    [
        ("example.org", b"x" * 16, "webhook_url", "must begin with http:// or https://"),
        ("https://example.org", b"x" * 15 + b"\n", "webhook_secret_file", "a secret of 16 to 4096 bytes"),
        ("https://example.org", b"x" * 4_097, "webhook_secret_file", "a secret of 16 to 4096 bytes"),
        ("", b"x" * 16, "webhook_url", "it must be there with the other one"),
    ],
)
def test_what_is_wrong_with_who_is_told(tmp_path: Path, url: str, secret: bytes, field: str, rule: str) -> None:
    """It is told before the node starts."""
    with pytest.raises(ConfigError, match=rule) as caught:
        config.check(CLUSTER, with_webhook(tmp_path, url, secret))

    assert caught.value.field == field


def test_a_secret_must_be_there(tmp_path: Path) -> None:
    """What is sent is signed, or not sent; a file that is not there is told with why."""
    for path, rule in ((None, "it must be there with the other one"), (tmp_path / "none", "No such file")):
        node = msgspec.structs.replace(NODE, webhook_url="https://example.org", webhook_secret_file=path)
        with pytest.raises(ConfigError, match=rule) as caught:
            config.check(CLUSTER, node)
        assert caught.value.field == "webhook_secret_file"


def test_waits_of_the_webhook() -> None:
    """The first is not longer than the longest."""
    with pytest.raises(ConfigError, match="webhook_wait_ms_min is 70; it must be at most webhook_wait_ms_max, 60"):
        config.check(CLUSTER, msgspec.structs.replace(NODE, webhook_wait_ms_min=70, webhook_wait_ms_max=60))
    config.check(CLUSTER, msgspec.structs.replace(NODE, webhook_wait_ms_min=60, webhook_wait_ms_max=60))
