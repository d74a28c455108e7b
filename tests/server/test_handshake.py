"""Who may speak as another node, and what is remembered of those who did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from stepward.internal.v1 import peer_service_pb2 as pb
from stepward.server import config
from stepward.server.clock import Clock, ManualClock
from stepward.server.config import ClusterConfig, NodeConfig, TlsFiles
from stepward.server.core.limits import Limits
from stepward.server.core.rejections import Reason, Refused
from stepward.server.peers.handshake import NEWEST_CONNECTION, Doorkeeper, is_local, why_refused
from stepward.server.peers.refusals import KEPT_MAX, KEPT_MS
from tests.server.host import CLOCK
from tests.server.peer_host import introduction

US = introduction("n2")


class Caller:
    """What a call says of who makes it."""

    def __init__(self, peer: str = "ipv4:127.0.0.1:4711", *uris: str) -> None:
        self._peer = peer
        self._uris = [uri.encode() for uri in uris]

    def peer(self) -> str:
        return self._peer

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"peer_uri": self._uris} if self._uris else {}


def hello(**fields: Any) -> pb.Hello:
    """One that fits, but for some fields."""
    message = introduction("n1").hello("n2", 1)
    for name, value in fields.items():
        setattr(message, name, value)
    return message


FILES = TlsFiles(ca=Path("ca"), certificate=Path("certificate"), key=Path("key"))
ADDRESSES = {node_id: f"{node_id}:7654" for node_id in ("n1", "n2", "n3")}


def doorkeeper(
    *, has_tls: bool = False, trusted_network: bool = False, clock: Clock = CLOCK, **known: Any
) -> Doorkeeper:
    tls = FILES if has_tls else None
    node = NodeConfig(data=Path("d"), nodes=ADDRESSES, tls=tls, trusted_network=trusted_network)
    return Doorkeeper(US, node, clock=clock, **known)


def admitted(keeper: Doorkeeper, message: pb.Hello, caller: Caller | None = None, *, stream: bool = True) -> str:
    """Why a hello is not let in; empty when it is."""
    admit: Any = keeper.admit_stream if stream else keeper.admit
    try:
        admit(message, caller or Caller())
    except Refused as refused:
        return f"{refused.rejection.reason.value}: {refused.rejection.message}"
    return ""


def test_what_fits_is_taken() -> None:
    """The hello of one node passes at the other."""
    assert why_refused(US, hello()) is None


@pytest.mark.parametrize(
    ("fields", "reason", "words"),
    [
        ({"protocol_version": 1}, Reason.PROTOCOL_VERSION, "protocol version 1 is not spoken here; this is 2"),
        ({"protocol_version": 3}, Reason.PROTOCOL_VERSION, "protocol version 3 is not spoken here; this is 2"),
        ({"cluster_id": "other"}, Reason.NODE_STATE, "n1 is of cluster other; this is cluster"),
        ({"to_node_id": "n3"}, Reason.NODE_STATE, "n1 looks for n3, and this is n2"),
        ({"node_id": "n4"}, Reason.NODE_STATE, "n4 is none of the other nodes of this cluster, which are: n1, n3"),
        ({"node_id": "n2"}, Reason.NODE_STATE, "n2 is none of the other nodes"),
        ({"node_id": ""}, Reason.NODE_STATE, " is none of the other nodes"),
        ({"configuration_hash": b""}, Reason.NODE_STATE, "n1 is configured otherwise"),
        # What somebody claims is told, but not all of it.
        ({"cluster_id": "x" * 65}, Reason.NODE_STATE, f"n1 is of cluster {'x' * 64}...; this is"),
    ],
)
def test_what_does_not_fit_is_refused(fields: dict[str, Any], reason: Reason, words: str) -> None:
    """The reason names both sides."""
    why = why_refused(US, hello(**fields))

    assert why is not None
    assert why.reason is reason
    assert why.message.startswith(words)


def test_incarnation_and_number_of_the_stream_only_grow() -> None:
    """Nothing that does not fit is remembered.

    A newer incarnation goes on counting: a node that was wiped, and whose wall clock went back, would else be taken in
    and never heard, since the logbook drops what comes on an older stream.
    """
    keeper = doorkeeper()
    told = [
        bool(admitted(keeper, hello(incarnation=incarnation, connection=connection, **fields)))
        for incarnation, connection, fields in (
            (2, 5, {}),
            (2, 5, {}),
            (2, 6, {}),
            (1, 9, {}),
            (3, 1, {"cluster_id": "other"}),
            (2, 7, {}),
            (3, 7, {}),
            (3, 8, {}),
            (2, 9, {}),
        )
    ]

    assert told == [False, True, False, True, True, False, True, False, True]


def test_incarnations_that_were_met_before_the_start_count() -> None:
    keeper = doorkeeper(incarnations={"n1": 5})

    assert "has begun anew as 5" in admitted(keeper, hello(incarnation=4))
    assert not admitted(keeper, hello(incarnation=5))
    assert keeper.newest_incarnation("n1") == 5


def test_numbers_matter_for_streams_that_replace_each_other_only() -> None:
    """Other calls come beside them."""
    keeper = doorkeeper()

    assert admitted(keeper, hello(connection=5)) == ""
    assert admitted(keeper, hello(connection=0), stream=False) == ""


def test_refused_number_tells_the_newest() -> None:
    """So that a node whose wall clock went back can begin above it."""
    keeper = doorkeeper()
    keeper.admit_stream(hello(connection=5), Caller())  # type: ignore[arg-type]  # all that is asked of a context
    with pytest.raises(Refused) as caught:
        keeper.admit_stream(hello(connection=5), Caller())  # type: ignore[arg-type]  # all that is asked of it

    assert caught.value.rejection.metadata == {NEWEST_CONNECTION: "5"}


@pytest.mark.parametrize(
    ("uris", "words"),
    [
        (["stepward://node/n1"], ""),
        (["stepward://node/n3", "stepward://node/n1"], ""),
        ([], "NOT_ALLOWED: this call is for nodes: its certificate must name stepward://node/n1, and names no node"),
        (["stepward://client/n1"], "NOT_ALLOWED: this call is for nodes"),
        (["stepward://agent/n1"], "NOT_ALLOWED: this call is for nodes"),
        (
            ["stepward://node/n3"],
            "NOT_ALLOWED: this call is for nodes: its certificate must name stepward://node/n1, an",
        ),
        (["stepward://node/n11"], "NOT_ALLOWED: this call is for nodes"),
        (["x-stepward://node/n1"], "NOT_ALLOWED: this call is for nodes"),
    ],
)
def test_certificate_says_which_node_speaks(uris: list[str], words: str) -> None:
    """A client's certificate is as good as a node's for public calls, and for nothing here."""
    caller = Caller("ipv4:192.0.2.7:4711", *uris)

    told = admitted(doorkeeper(has_tls=True), hello(), caller)

    assert told.startswith(words) if words else told == ""


def test_without_tls_only_this_machine_is_heard() -> None:
    """Unless somebody vouches for the network."""
    stranger = Caller("ipv4:192.0.2.7:4711")

    assert admitted(doorkeeper(), hello(), stranger).startswith("NOT_ALLOWED: without TLS other nodes are only taken")
    assert admitted(doorkeeper(trusted_network=True), hello(), stranger) == ""


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        ("ipv4:127.0.0.1:80", True),
        ("ipv4:127.9.9.9:80", True),
        ("ipv6:[::1]:80", True),
        ("ipv6:%5B::1%5D:80", True),
        ("ipv6:[::ffff:127.0.0.1]:80", True),
        ("unix:/tmp/socket", True),
        ("ipv4:192.0.2.7:80", False),
        ("ipv6:[2001:db8::1]:80", False),
        ("ipv6:[fe80::1%25eth0]:80", False),
        ("ipv6:[::ffff:192.0.2.7]:80", False),
        ("vsock:1:2", False),
        ("", False),
    ],
)
def test_is_local(peer: str, local: bool) -> None:
    """In whatever form gRPC names a caller."""
    assert is_local(peer) is local


GONE_MS = NodeConfig(data=Path("d")).peer_gone_ms


@pytest.mark.parametrize(("silent_ms", "taken"), [(0, False), (GONE_MS - 1, False), (GONE_MS, True)])
def test_a_second_node_of_one_id_waits_until_the_first_is_gone(silent_ms: int, taken: bool) -> None:
    """Taken at once, it would lock out the node that works, for good, by a start that was a mistake."""
    clock = ManualClock(steady_ms=1_000, wall_ms=0)
    keeper = doorkeeper(clock=clock)
    assert admitted(keeper, hello(incarnation=1, connection=1)) == ""
    keeper.presence.heard("n1")

    clock.advance(silent_ms)
    told = [admitted(keeper, hello(incarnation=7, connection=2), stream=stream) for stream in (False, True)]
    again = admitted(keeper, hello(incarnation=1, connection=3))

    if taken:
        assert told == ["", ""]
        assert "has begun anew as 7 since" in again
        return
    text = f"n1 runs already at n1:7654, incarnation 1, last heard {silent_ms / 1_000:.1f} s ago; stop it first"
    assert all(text in one for one in told)
    assert again == ""


def test_who_comes_with_nothing_is_told_whether_it_may() -> None:
    """Before its directory is made; and by a node that would know."""
    clock = ManualClock(steady_ms=1_000, wall_ms=0)
    keeper, caller = doorkeeper(clock=clock), Caller()
    clock.advance(GONE_MS - 1)
    early = keeper.refuse_newcomer("n1", caller)  # type: ignore[arg-type]  # all that is asked of a context
    clock.advance(1)
    free = keeper.refuse_newcomer("n1", caller)  # type: ignore[arg-type]  # all that is asked of a context
    keeper.presence.heard("n1")
    there = keeper.refuse_newcomer("n1", caller)  # type: ignore[arg-type]  # all that is asked of a context
    nobody = keeper.refuse_newcomer("", caller)  # type: ignore[arg-type]  # all that is asked of a context

    assert (
        early
        == "another n1 may run: the node that was asked was started 5.0 s ago, and knows after 5.0 s (peer_gone_ms)"
    )
    assert (free, nobody) == ("", "")
    assert there.startswith("n1 runs already at n1:7654, incarnation 0, last heard 0.0 s ago")
    assert [refusal.refused_host for refusal in keeper.refusals.lately()] == ["127.0.0.1"]


def test_refusals_are_kept_for_who_looks() -> None:
    """The last of each id and host, for as long as whoever is refused would have come again."""
    clock = ManualClock(steady_ms=0, wall_ms=0)
    keeper = doorkeeper(clock=clock)
    for cluster_id in ("one", "two"):
        admitted(keeper, hello(cluster_id=cluster_id))
    clock.advance(KEPT_MS)
    (kept,) = keeper.refusals.lately()
    clock.advance(1)
    later = keeper.refusals.lately()
    admitted(keeper, hello(cluster_id="two"))
    again = keeper.refusals.lately()
    admitted(keeper, hello())

    assert kept[:3] == ("n2", "n1", "127.0.0.1")
    assert kept.reason.startswith("n1 is of cluster two")
    assert (later, len(again)) == ([], 1)
    # Whoever is taken is refused no more.
    assert keeper.refusals.lately() == []


def test_refusals_are_bounded() -> None:
    """The newest stay."""
    keeper = doorkeeper(clock=ManualClock(steady_ms=0, wall_ms=0))
    for number in range(KEPT_MAX + 1):
        admitted(keeper, hello(), Caller(f"ipv4:192.0.2.{number}:4711"))

    assert [one.refused_host for one in keeper.refusals.lately()] == [
        f"192.0.2.{number}" for number in range(1, KEPT_MAX + 1)
    ]


def test_a_refusal_names_what_is_configured_otherwise() -> None:
    """With both values: comparing two files by eye is how such a mistake is made."""
    ours, theirs = ClusterConfig(), ClusterConfig(limits=Limits(session_ttl_ms=9_000, retention_ms=1_000))
    us = introduction("n2", configuration_hash=ours.fingerprint(), configuration=ours.encoded())

    why = why_refused(us, hello(configuration_hash=theirs.fingerprint(), configuration=theirs.encoded()))

    assert why is not None
    assert why.message == (
        "n1 is configured otherwise in what must be equal on all nodes: retention_ms is 1000 there and 604800000 on "
        "n2; session_ttl_ms is 9000 there and 10000 on n2; give all nodes the same"
    )


@pytest.mark.parametrize(
    "configuration",
    [b"", b"\xff" * 64, msgspec.msgpack.encode({"limits": {"a": []}}), b"\x81" * 100_000, bytes(1 << 17)],
)
def test_a_configuration_that_nobody_can_read(configuration: bytes) -> None:
    """It is refused all the same."""
    us = introduction("n2", configuration=ClusterConfig().encoded())

    why = why_refused(us, hello(configuration_hash=b"other", configuration=configuration))

    assert why is not None
    assert "compare the limits of its configuration with those of n2" in why.message


def test_what_is_told_of_a_configuration_is_bounded() -> None:
    """Whatever its names and values are."""
    strange = {"limits": {f"{number:03}{'x' * 100}": "y" * 100 for number in range(50)}}
    found = config.differences(ClusterConfig().encoded(), msgspec.msgpack.encode(strange))

    assert len(found) == config.DIFFERENCES_MAX
    assert max(len(part) for one in found for part in one) <= 64
    assert found[0].ours == "unknown"
