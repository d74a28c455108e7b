"""`stepward cluster ...`, against nodes that say what they are told to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest

from stepward.client import Client, errors
from stepward.client.cli import cluster_status
from stepward.client.cli.cluster_advice import advise
from stepward.client.cli.cluster_status import Found, judge
from stepward.client.values import FollowerStatus, NodeState, NodeStatus, Refusal, ShardStatus
from stepward.v1 import cluster_service_pb2, common_pb2
from tests.client.command_line import Ran, run
from tests.client.scripted_server import Refused, ScriptedServer

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def said(node_id: str, *, leader: bool = False, members: dict[str, str] | None = None, **more: Any) -> Any:
    """The status of a node that is well."""
    count = cluster_service_pb2.JobCount(state=common_pb2.JOB_STATE_RUNNING, count=3)
    shard = cluster_service_pb2.ShardStatus(
        leader=leader, leader_id="n1", term=4, sequence=9, hash="ab" * 32, jobs=[count], free_bytes=5 << 30
    )
    shard.supervisor_beat_at.FromDatetime(datetime.now(UTC))
    listed = [cluster_service_pb2.Member(node_id=one, address=address) for one, address in (members or {}).items()]
    given = {"state": cluster_service_pb2.NODE_STATE_SERVING, "shards": [shard], **more}
    return cluster_service_pb2.GetStatusResponse(node_id=node_id, cluster_id="c", members=listed, pid=47, **given)


def words(ran: Ran) -> list[list[str]]:
    return [line.split() for line in ran.lines if line.startswith("n")]


def test_nodes_that_are_not_named_are_asked_too(server: ScriptedServer, second_server: ScriptedServer) -> None:
    """The one that is asked first knows the others; each node is asked once, and stands in the order of the ids."""
    members = {"n1": second_server.address, "n2": server.address}
    server.always("GetStatus", said("n2", members=members))
    second_server.always("GetStatus", said("n1", leader=True, members=members))

    ran = run("cluster", "status", "--server", server.address)

    assert (ran.code, ran.stderr) == (0, "")
    assert [line[:4] for line in words(ran)] == [
        ["n1", second_server.address, "SERVING", "leader"],
        ["n2", server.address, "SERVING", "follower"],
    ]
    assert words(ran)[0][4:9] == ["4", "9", "abababababab", "0", "5.0GiB"]
    assert ran.lines[-1] == "cluster c, jobs: 3 RUNNING"
    assert len(server.requests("GetStatus")) == 1


def test_a_node_that_is_gone_is_shown(server: ScriptedServer) -> None:
    """Under its id, in its place, and with code 1: the others tell how the cluster is."""
    server.always("GetStatus", said("n2", leader=True, members={"n1": "127.0.0.1:1", "n2": server.address}))

    ran = run("cluster", "status", "--server", f"127.0.0.1:1,{server.address}")

    assert ran.code == 1
    assert words(ran) == [["n1", "127.0.0.1:1", "UNREACHABLE"], words(ran)[1]]
    assert ran.stderr == "trouble: n1 does not answer: Connection refused\n"


def test_free_disk_of_a_node_that_is_gone_is_told_by_the_leader(server: ScriptedServer) -> None:
    """It may be why it is gone."""
    status = said("n2", leader=True, members={"n1": "127.0.0.1:1", "n2": server.address})
    status.shards[0].followers.add(node_id="n1", free_bytes=20 << 20)
    server.always("GetStatus", status)

    ran = run("cluster", "status", "--server", server.address)

    assert words(ran)[0] == ["n1", "127.0.0.1:1", "UNREACHABLE", "20MiB"]
    assert ran.lines[1].index("20MiB") == ran.lines[0].index("FREE")
    assert "n1 has only 20MiB of free disk, as the leader knows it" in ran.stderr


def test_nobody_answers() -> None:
    """Then nobody can tell how the cluster is, which is another code than that it is not well."""
    ran = run("cluster", "status", "--server", "127.0.0.1:1")

    assert ran.code == 5
    assert ran.lines[1].split() == ["?", "127.0.0.1:1", "UNREACHABLE"]


def test_as_json(server: ScriptedServer) -> None:
    """Everything that a node said, and where; of one that said nothing, why."""
    server.always("GetStatus", said("n2", leader=True, members={"n1": "127.0.0.1:1", "n2": server.address}))

    ran = run("cluster", "status", "--server", server.address, "-o", "json")

    gone, there = ran.json
    assert (gone["node_id"], gone["address"], bool(gone["error"])) == ("n1", "127.0.0.1:1", True)
    assert (there["node_id"], there["address"], there["error"]) == ("n2", server.address, "")
    assert there["shards"][0]["term"] == "4"


def node(node_id: str, shard: ShardStatus, **more: Any) -> Found:
    status = NodeStatus(cluster_id="c", node_id=node_id, version="1", shards=(shard,), **more)
    return Found("a", node_id, status)


def shard_of(**more: Any) -> ShardStatus:
    return ShardStatus(**{"shard": 0, "leader": False, "term": 4, "sequence": 9, "hash": "aa", **more})


AWAY_N2 = Found("b", "n2", error="no")
LEADER = shard_of(leader=True, supervisor_beat_at=NOW - timedelta(seconds=8))


@pytest.mark.parametrize(
    ("found", "troubles"),
    [
        ([node("n1", LEADER), node("n2", shard_of())], []),
        ([node("n1", shard_of()), node("n2", shard_of())], ["nobody leads"]),
        # An old leader that has not heard of the new one leads in an older term.
        ([node("n1", LEADER), node("n2", shard_of(leader=True, term=3))], []),
        (
            [node("n1", LEADER), node("n2", shard_of(leader=True))],
            ["two nodes lead in the same term; this must never happen: stop the cluster and keep its files"],
        ),
        (
            [node("n1", LEADER), node("n2", shard_of(hash="bb"))],
            ["nodes hold different rows at sequence 9: aa, bb"],
        ),
        ([node("n1", LEADER), node("n2", shard_of(hash="bb", sequence=8))], []),
        (
            [node("n1", shard_of(leader=True, supervisor_beat_at=NOW - timedelta(seconds=8.1)))],
            ["nobody supervises the jobs: the last beat was 8.1 s ago"],
        ),
        (
            [node("n1", LEADER), node("n2", shard_of(), state=NodeState.QUARANTINED, state_reason="it waits for n3")],
            ["n2 is QUARANTINED: it waits for n3"],
        ),
        ([node("n1", LEADER, state=NodeState.SERVING, state_reason="it drains")], ["n1: it drains"]),
        (
            [node("n1", shard_of(leader=True, free_bytes=cluster_status.FREE_BYTES_MIN - 1))],
            ["n1 has only 96MiB of free disk"],
        ),
        ([node("n1", shard_of(leader=True, free_bytes=cluster_status.FREE_BYTES_MIN))], []),
        # Of one that does not answer the leader knows what it said of its disk.
        (
            [node("n1", shard_of(leader=True, followers=(FollowerStatus(node_id="n2", free_bytes=7 << 20),))), AWAY_N2],
            ["n2 does not answer: no", "n2 has only 7MiB of free disk, as the leader knows it"],
        ),
        (
            [node("n1", shard_of(leader=True, followers=(FollowerStatus(node_id="n2"),))), AWAY_N2],
            ["n2 does not answer: no"],
        ),
        (
            [node("n1", LEADER), Found("b", "n2", NodeStatus(cluster_id="d", node_id="n2", version="1"))],
            ["the nodes belong to different clusters: c, d"],
        ),
        (
            [Found("b", "n2", NodeStatus(cluster_id="", node_id="n2", version="1", state=NodeState.EMPTY))],
            ["n2 is EMPTY"],
        ),
    ],
)
def test_what_is_wrong(found: list[Found], troubles: list[str]) -> None:
    """As the nodes tell it together."""
    assert list(judge(found, NOW)) == troubles


def refused_by(node_id: str, refused_id: str, host: str = "", why: str = "x") -> Refusal:
    return Refusal(node_id, refused_id, host, why)


N1, N2, N3 = ("n1", LEADER), ("n2", shard_of()), ("n3", shard_of())


@pytest.mark.parametrize(
    ("found", "troubles"),
    [
        # A second start of n2, of which both others tell.
        (
            [
                node(*N1, refusals=(refused_by("n1", "n2", "10.0.0.9", "n2 runs already"),)),
                node(*N2),
                node(*N3, refusals=(refused_by("n3", "n2", "10.0.0.9", "n2 runs already"),)),
            ],
            ["n1, n3 do not take n2 that calls from 10.0.0.9: n2 runs already"],
        ),
        # Other limits on n3: it refuses as it is refused, and each node tells both.
        (
            [
                node(*N1, refusals=(refused_by("n1", "n3", "h", "a"), refused_by("n3", "n1"))),
                node(*N2, refusals=(refused_by("n2", "n3", "h", "a"), refused_by("n3", "n2"))),
                node(*N3, refusals=(refused_by("n3", "n1", "h"), refused_by("n1", "n3", why="a"))),
            ],
            ["n1, n2 do not take n3 that calls from h: a"],
        ),
        # Of two who refuse each other nobody can say who is wrong.
        (
            [node(*N1, refusals=(refused_by("n1", "n2", why="a"), refused_by("n2", "n1", why="b")))],
            ["n2 does not take n1: b", "n1 does not take n2: a"],
        ),
    ],
)
def test_who_is_refused(found: list[Found], troubles: list[str]) -> None:
    """By whom and why, each once."""
    assert list(judge(found, NOW)) == troubles


def in_state(node_id: str, state: NodeState, cluster_id: str = "c") -> Found:
    return Found("a", node_id, NodeStatus(cluster_id=cluster_id, node_id=node_id, version="1", state=state))


AWAY = Found("a", "n3")
EMPTY = [in_state(f"n{number}", NodeState.EMPTY, "") for number in (1, 2, 3)]
WELL = in_state("n1", NodeState.SERVING)
WIPED = [in_state(f"n{number}", NodeState.QUARANTINED) for number in (2, 3)]


@pytest.mark.parametrize(
    ("found", "steps"),
    [
        ([WELL, AWAY], []),
        (
            EMPTY,
            [
                "if these nodes have never been a cluster, make one, once: stepward cluster create --server a",
                "if they have, do not: bring back the directories of most of them, and let n1, n2 and n3 find an empty "
                "one only where it is lost",
            ],
        ),
        (
            [*EMPTY[:2], AWAY],
            ["start n3: a cluster is made of all nodes, and one that is away may know one already"],
        ),
        (
            [WELL, EMPTY[1]],
            ["n2 will join by itself, as soon as nothing of what is told above prevents it"],
        ),
        ([WELL, WIPED[0]], ["n2 will take part by itself, when it holds what the others hold"]),
        (
            [WELL, WIPED[0], AWAY],
            [
                "start n3: n2 must hear from every node what may have been promised",
                "only if the data of n2 and n3 will never come back: stepward cluster recover n2 --gone n3 --reason "
                "WHY --server a (what only they had is lost)",
            ],
        ),
        (
            [WELL, *WIPED],
            [
                "n2 and n3 wait for each other's word: bring back the directory of one, if there is one",
                "only if the data of n2 and n3 will never come back: stepward cluster recover n2 --gone n3 --reason "
                "WHY --server a (what only they had is lost)",
            ],
        ),
        # Without a majority nothing can be recovered.
        (
            [WIPED[0], Found("a", "n1"), AWAY],
            ["start n1 and n3: n2 must hear from every node what may have been promised"],
        ),
    ],
)
def test_what_to_do(found: list[Found], steps: list[str]) -> None:
    """Each with when it is right: the commands are few, and used on the wrong day they lose what was promised."""
    assert list(advise(found, " --server a")) == steps


def test_what_to_do_is_said(server: ScriptedServer) -> None:
    """Behind what is wrong, with the options that were given."""
    empty = cluster_service_pb2.NODE_STATE_EMPTY
    server.always("GetStatus", cluster_service_pb2.GetStatusResponse(node_id="n1", state=empty))

    ran = run("cluster", "status", "--server", server.address)

    assert ran.code == 1
    assert "to do: if these nodes have never been a cluster, make one, once" in ran.stderr
    assert f"stepward cluster create --server {server.address}\n" in ran.stderr


def test_create(server: ScriptedServer, at: list[str]) -> None:
    """The id on stdout, for scripts; the nodes for a person."""
    member = cluster_service_pb2.Member(node_id="n1", address="a:1")
    server.always("CreateCluster", cluster_service_pb2.CreateClusterResponse(cluster_id="c-1", members=[member]))

    ran, as_json = run("cluster", "create", *at), run("cluster", "create", *at, "-o", "json")

    assert (ran.code, ran.stdout) == (0, "c-1\n")
    assert "n1 at a:1" in ran.stderr
    assert as_json.json == {"cluster_id": "c-1", "members": [{"node_id": "n1", "address": "a:1"}]}


@pytest.mark.parametrize(
    ("refused", "code"),
    [
        (Refused(grpc.StatusCode.ALREADY_EXISTS, "CLUSTER_EXISTS", "n2 knows cluster c"), 4),
        (Refused(grpc.StatusCode.FAILED_PRECONDITION, "NODE_STATE", "nothing was made: n3 cannot be reached"), 4),
    ],
)
def test_create_is_refused(server: ScriptedServer, at: list[str], refused: Refused, code: int) -> None:
    """In the words of the node, without another try."""
    server.on("CreateCluster", refused)

    ran = run("cluster", "create", *at)

    assert (ran.code, ran.stdout) == (code, "")
    assert refused.message in ran.stderr


def test_create_is_not_repeated_blindly(server: ScriptedServer, at: list[str]) -> None:
    """It may have been made; the next answer would only say that there is one."""
    server.on("CreateCluster", Refused(grpc.StatusCode.UNAVAILABLE, "COMMIT_UNKNOWN"))

    assert run("cluster", "create", *at).code == 5
    assert len(server.requests("CreateCluster")) == 1


def test_transfer_leader(server: ScriptedServer, at: list[str]) -> None:
    """Who leads now, who did, and how long it took."""
    server.always("GetStatus", said("n1", leader=True))
    server.always("TransferLeader", cluster_service_pb2.TransferLeaderResponse(node_id="n2", term=5))

    named, any_, as_json = (
        run("cluster", "transfer-leader", "n2", *at),
        run("cluster", "transfer-leader", *at),
        run("cluster", "transfer-leader", *at, "-o", "jsonl"),
    )

    assert [request.node_id for request in server.requests("TransferLeader")] == ["n2", "", ""]
    assert named.code == any_.code == 0
    assert named.stderr.startswith("n2 leads now, in term 5; before it was n1. This took ")
    assert as_json.json == {"node_id": "n2", "term": 5, "took_ms": as_json.json["took_ms"]}


def test_transfer_to_the_node_that_leads(server: ScriptedServer, at: list[str]) -> None:
    """It is as it was asked to be."""
    server.always("GetStatus", said("n1", leader=True))
    server.always("TransferLeader", cluster_service_pb2.TransferLeaderResponse(node_id="n1", term=4))

    ran = run("cluster", "transfer-leader", "n1", *at)

    assert (ran.code, ran.stderr) == (0, "n1 leads already, in term 4; nothing was changed\n")


def recovered(server: ScriptedServer, *arguments: str, stdin: str | None = None) -> Ran:
    server.always("GetStatus", said("n2", members={"n2": server.address, "n3": "127.0.0.1:1"}))
    server.always("RecoverNode", cluster_service_pb2.RecoverNodeResponse(warning="Compare what is missing."))
    return run("cluster", "recover", *arguments, "--server", server.address, stdin=stdin)


def test_recover_asks_first(server: ScriptedServer) -> None:
    """What may be lost is said before anything is done, and the name of what is given up has to be typed."""
    ran = recovered(server, "n2", "--gone", "n3", "--reason", "its disk burnt", stdin="n3\n")

    assert ran.code == 0
    assert "Whatever only n2 and n3 had on their disks is lost" in ran.stderr
    assert ran.stderr.endswith("n2 goes on without n3. Compare what is missing.\n")
    (request,) = server.requests("RecoverNode")
    assert (list(request.gone_node_ids), request.reason, bool(request.actor)) == (["n3"], "its disk burnt", True)


@pytest.mark.parametrize("typed", ["", "y\nyes\n", "n2\n"])
def test_recover_without_the_name_does_nothing(server: ScriptedServer, typed: str) -> None:
    """A habit of typing yes is not an answer."""
    ran = recovered(server, "n2", "--gone", "n3", "--reason", "x", stdin=typed)

    assert ran.code == 1
    assert server.requests("RecoverNode") == []


def test_recover_with_yes(server: ScriptedServer) -> None:
    """For scripts."""
    ran = recovered(server, "n2", "--gone", "n3", "--reason", "x", "--yes", "-o", "json")

    assert ran.json == {"node_id": "n2", "gone": ["n3"], "warning": "Compare what is missing."}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("n2", "--gone", "n3"), 2),
        (("n2", "--reason", "x"), 2),
        (("n3", "--gone", "n1", "--reason", "x", "--yes"), 5),
    ],
)
def test_recover_needs_all_of_it(server: ScriptedServer, arguments: tuple[str, ...], code: int) -> None:
    """A reason, what is gone, and a node that answers."""
    assert recovered(server, *arguments).code == code
    assert server.requests("RecoverNode") == []


def test_the_clients_have_the_verbs(server: ScriptedServer) -> None:
    """A program can do what the command line does."""
    server.on("TransferLeader", cluster_service_pb2.TransferLeaderResponse(node_id="n2", term=5))
    server.on("RecoverNode", Refused(grpc.StatusCode.FAILED_PRECONDITION, "NODE_STATE", "n2 waits for nobody"))
    with Client(server.address) as client:
        leads = client.transfer_leader()
        with pytest.raises(errors.Conflict, match="n2 waits for nobody"):
            client.recover_node(["n3"], reason="x")

    assert (leads.node_id, leads.term) == ("n2", 5)
