"""Who is told of incidents hears of each opening and each resolution, in order, whatever happens in between."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from stepward.server import webhook, webhook_signature
from stepward.server.core import incidents, keys, ledger_rows, notices
from stepward.server.core.limits import Limits
from stepward.server.node import Node
from stepward.v1 import definition_pb2
from stepward.v1 import supervision_service_pb2 as pb
from tests.server import nodes
from tests.server.cluster import Cluster
from tests.server.escalations import define, escalate
from tests.server.nodes import Stubs
from tests.server.peer_host import free_address
from tests.server.webhook_receiver import SECRET, Receiver, receiving

S = nodes.CALL_S_MAX
DIGEST = "99b537ba2e7b40fb0a32d5ddbf4ee721a8d63eec524164afec9307152e8e38ae"
# Longer than any of it takes, however busy the machine.
WAIT_S_MAX = 20.0
QUICK: dict[str, Any] = {"webhook_wait_ms_min": 10, "webhook_wait_ms_max": 40}


def secret_file(folder: Path) -> Path:
    path = folder / "secret"
    path.write_bytes(SECRET + b"\n")
    return path


@contextlib.asynccontextmanager
async def telling(
    folder: Path, url: str, *, limits: Limits | None = None, **config: Any
) -> AsyncIterator[tuple[Node, Stubs]]:
    """A node that tells of incidents, and a connection to it."""
    told = {"webhook_url": url, "webhook_secret_file": secret_file(folder)} if url else {}
    async with (
        nodes.running(folder / "data", limits=limits, **QUICK | told | config) as node,
        nodes.connected(node.address) as stubs,
    ):
        yield node, stubs


async def until(condition: Callable[[], object]) -> None:
    """Wait for what another thread, or the node, makes true."""
    async with asyncio.timeout(WAIT_S_MAX):
        while not condition():  # noqa: ASYNC110 - threads of a server and steps of a node make it true
            await asyncio.sleep(0.005)


async def fail(stubs: Stubs, *incident_ids: str) -> None:
    request = pb.ResolveIncidentsRequest(
        incident_ids=incident_ids, resolution=pb.RESOLUTION_FAIL, reason="because", actor="ann"
    )
    assert (await stubs.supervision.ResolveIncidents(request, timeout=S)).resolved == len(incident_ids)


def cursor_of(node: Node) -> ledger_rows.NoticeCursor | None:
    with node._shard.committed() as reader:
        return notices.cursor(reader)


def test_the_signature_is_what_others_compute() -> None:
    """Made with: printf '%s' '1700000000.{}' | openssl dgst -sha256 -hmac 'a secret of the tests'."""
    assert webhook_signature.signature(b"a secret of the tests", 1_700_000_000, b"{}") == f"t=1700000000,v1={DIGEST}"


async def test_what_is_told(tmp_path: Path) -> None:
    """Each opening and each resolution once, in order, signed, with the incident as the command line shows it."""
    with receiving(Receiver()) as receiver:
        async with telling(tmp_path, receiver.url) as (node, stubs):
            await define(stubs)
            (job_id, _) = await escalate(stubs, 2)
            await until(lambda: len(receiver.said) == 2)
            await fail(stubs, "i0-1")
            await until(lambda: len(receiver.said) == 3)
            await until(lambda: cursor_of(node) == ledger_rows.NoticeCursor(done=3))
            assert (node.counters.notices_sent, node.counters.notices_given_up) == (3, 0)
            assert node.counters.webhook_failures == 0
            assert node._telling.waiting == 0

    assert receiver.said == [("opened", "i0-1"), ("opened", "i0-2"), ("resolved", "i0-1")]
    assert receiver.faults == []
    first, last = receiver.notices[0], receiver.notices[-1]
    assert first["id"].endswith("/1")
    assert (first["incident"]["job_id"], first["incident"]["state"]) == (job_id, "INCIDENT_STATE_OPEN")
    assert first["incident"]["failure"]["message"] == "the bank hung up"
    assert (last["incident"]["how"], last["incident"]["by"]) == ("REMEDY_FAIL", "REMEDY_BY_PERSON")
    assert (last["incident"]["actor"], last["incident"]["reason"]) == ("ann", "because")
    assert receiver.taken[0]["version"] == 1


async def test_a_refusal_is_tried_again(tmp_path: Path) -> None:
    """With waits in between, until it is taken; nothing overtakes it."""
    with receiving(Receiver()) as receiver:
        answers = iter([503, 429, 500])
        receiver.answer = lambda body: next(answers, 204)
        async with telling(tmp_path, receiver.url) as (node, stubs):
            await define(stubs)
            await escalate(stubs, 3)
            await until(lambda: len(receiver.said) == 3)
            assert node.counters.webhook_failures == 3
            assert node.counters.notices_given_up == 0

    assert receiver.said == [("opened", f"i0-{number}") for number in (1, 2, 3)]


@pytest.mark.parametrize("status", [408, 425, 429, 502, 503, 504])
async def test_who_cannot_take_anything_now_is_borne(tmp_path: Path, status: int) -> None:
    """What stands before an endpoint says so while that is down; no notice is at fault, and none is given up."""
    with receiving(Receiver()) as receiver:
        answers = iter([status] * 5)
        receiver.answer = lambda body: next(answers, 204)
        async with telling(tmp_path, receiver.url, webhook_tries_max=1) as (node, stubs):
            await define(stubs)
            await escalate(stubs, 2)
            await until(lambda: len(receiver.said) == 2)
            assert node.counters.webhook_failures == 5
            assert node.counters.notices_given_up == 0

    assert receiver.said == [("opened", "i0-1"), ("opened", "i0-2")]


async def test_a_refusal_after_a_long_silence_is_the_first_one(tmp_path: Path) -> None:
    """And what is refused together is refused alone before it is given up."""
    host, _, port = free_address().rpartition(":")
    url = f"http://{host}:{port}/hook?of=tests"
    async with telling(tmp_path, url, webhook_tries_max=2) as (node, stubs):
        await define(stubs)
        await escalate(stubs, 3)
        await until(lambda: node.counters.webhook_failures > 5)
        answers = iter([500])
        receiver = Receiver()
        receiver.answer = lambda body: next(answers, 204)
        with receiving(receiver, port=int(port)):
            await until(lambda: len(receiver.said) == 3)
        assert node.counters.notices_given_up == 0


async def test_what_cannot_be_taken_does_not_hold_the_others(tmp_path: Path) -> None:
    """One that is refused again and again is given up alone, and counted."""
    with receiving(Receiver()) as receiver:

        def answer(body: dict[str, Any]) -> int:
            return 400 if any(one["incident"]["incident_id"] == "i0-2" for one in body["notices"]) else 204

        receiver.answer = answer
        async with telling(tmp_path, receiver.url, webhook_tries_max=8) as (node, stubs):
            await define(stubs)
            await escalate(stubs, 4)
            await until(lambda: len(receiver.said) == 3)
            await until(lambda: cursor_of(node) == ledger_rows.NoticeCursor(done=4, given_up=1))
            assert node.counters.notices_given_up == 1

    assert receiver.said == [("opened", f"i0-{number}") for number in (1, 3, 4)]


async def test_a_dead_endpoint_harms_nothing(tmp_path: Path) -> None:
    """Jobs go on, the node is not held up, and whoever comes back is told everything."""
    host, _, port = free_address().rpartition(":")
    async with telling(tmp_path, f"http://{host}:{port}/hook?of=tests") as (node, stubs):
        await define(stubs)
        await escalate(stubs, 3)
        await fail(stubs, "i0-1")
        await until(lambda: node.counters.webhook_failures > 2)
        await until(lambda: node._telling.waiting == 4)
        with receiving(Receiver(), port=int(port)) as receiver:
            await until(lambda: len(receiver.said) == 4)
        await until(lambda: node._telling.waiting == 0)

    assert [type_ for type_, _ in receiver.said] == ["opened"] * 3 + ["resolved"]


async def test_an_endpoint_that_says_nothing_harms_nothing(tmp_path: Path) -> None:
    """It is given its time, then asked again; calls are answered meanwhile, and a node that stops waits for nobody."""
    with receiving(Receiver()) as receiver:
        receiver.answer = lambda body: None
        async with telling(tmp_path, receiver.url, webhook_timeout_ms=300) as (node, stubs):
            await define(stubs)
            await escalate(stubs, 1)
            await until(lambda: len(receiver.bodies) == 2)
            assert node.counters.webhook_failures >= 1
            (listed,) = (await stubs.supervision.ListIncidents(pb.ListIncidentsRequest(), timeout=S)).incidents
            begun_s = time.monotonic()
        took_s = time.monotonic() - begun_s

    assert listed.incident_id == "i0-1"
    assert took_s < 5.0
    assert receiver.taken == []


async def test_more_than_is_remembered_is_counted(tmp_path: Path) -> None:
    """The newest are told when somebody listens again."""
    host, _, port = free_address().rpartition(":")
    url = f"http://{host}:{port}/hook?of=tests"
    async with telling(tmp_path, url, limits=Limits(notices_max=3)) as (node, stubs):
        await define(stubs)
        await escalate(stubs, 5)
        await until(lambda: node.counters.notices_given_up == 2)
        with receiving(Receiver(), port=int(port)) as receiver:
            await until(lambda: len(receiver.said) == 3)
        await until(lambda: cursor_of(node) == ledger_rows.NoticeCursor(done=5, given_up=2))

    assert [incident_id for _, incident_id in receiver.said] == ["i0-3", "i0-4", "i0-5"]


async def test_what_is_too_old_is_given_up(tmp_path: Path) -> None:
    """After the time for which a notice is of use nobody is asked to take it any more."""
    host, _, port = free_address().rpartition(":")
    url = f"http://{host}:{port}/hook?of=tests"
    async with telling(tmp_path, url, webhook_age_ms_max=1_000) as (node, stubs):
        await define(stubs)
        await escalate(stubs, 2)
        await until(lambda: node.counters.notices_given_up == 2)
        await until(lambda: node._telling.waiting == 0)
        with receiving(Receiver(), port=int(port)) as receiver:
            await escalate(stubs, 1)
            await until(lambda: len(receiver.said) == 1)

    assert receiver.said == [("opened", "i0-3")]


async def test_a_secret_is_changed_without_a_restart(tmp_path: Path) -> None:
    """The file is read for each request; one that cannot be used holds what is to be told, and loses nothing."""
    with receiving(Receiver()) as receiver:
        async with telling(tmp_path, receiver.url) as (node, stubs):
            await define(stubs)
            await escalate(stubs, 1)
            await until(lambda: len(receiver.said) == 1)
            (tmp_path / "secret").write_bytes(b"short")
            await escalate(stubs, 1)
            await until(lambda: node.counters.webhook_failures > 1)
            receiver.secret = b"another secret of the tests"
            (tmp_path / "secret").write_bytes(receiver.secret)
            await until(lambda: len(receiver.said) == 2)

    assert receiver.faults == []


async def test_who_begins_to_listen_is_told_of_what_is_open(tmp_path: Path) -> None:
    """Not of what was resolved before the oldest open one, and of nothing when nothing is open."""
    async with telling(tmp_path, "") as (_, stubs):
        await define(stubs)
        await escalate(stubs, 3)
        await fail(stubs, "i0-1")
        await fail(stubs, "i0-3")
    with receiving(Receiver()) as receiver:
        async with telling(tmp_path, receiver.url) as (node, stubs):
            await until(lambda: len(receiver.said) == 4)
            await fail(stubs, "i0-2")
            await until(lambda: cursor_of(node) == ledger_rows.NoticeCursor(done=6))

    assert receiver.said[0] == ("opened", "i0-2")
    assert receiver.said[-1] == ("resolved", "i0-2")


async def test_a_node_that_comes_back_goes_on(tmp_path: Path) -> None:
    """Behind what was marked before; what was marked is not told again."""
    with receiving(Receiver()) as receiver:
        async with telling(tmp_path, receiver.url) as (node, stubs):
            await define(stubs)
            await escalate(stubs, 2)
            await until(lambda: cursor_of(node) == ledger_rows.NoticeCursor(done=2))
        async with telling(tmp_path, receiver.url) as (node, stubs):
            await escalate(stubs, 1)
            await until(lambda: len(receiver.said) == 3)

    assert len(receiver.notices) == 3


async def test_a_change_of_leaders_loses_nothing(tmp_path: Path) -> None:
    """What the old leader had not sent, or not marked, the new one sends: at least once, each with its id."""
    with receiving(Receiver()) as receiver:
        receiver.answer = lambda body: 503
        told = {"webhook_url": receiver.url, "webhook_secret_file": secret_file(tmp_path)}
        cluster = Cluster(tmp_path, webhook_tries_max=1_000, **QUICK | told)
        for member in cluster.directories:
            await cluster.start(member)
        try:
            first = await cluster.led()
            async with nodes.connected(cluster.nodes[first].address) as stubs:
                await define(stubs)
                await escalate(stubs, 3)
            await until(lambda: len(receiver.bodies) > 1)
            assert receiver.taken == []
            await cluster.vanish(first)
            receiver.answer = lambda body: 204
            await until(lambda: len(receiver.said) == 3)
            second = await cluster.led()
            await until(lambda: cursor_of(cluster.nodes[second]) == ledger_rows.NoticeCursor(done=3))
            for member, node in cluster.nodes.items():
                assert (node.counters.notices_sent > 0) is (member == second)
        finally:
            for member in list(cluster.nodes):
                await cluster.stop(member)

    assert receiver.said == [("opened", f"i0-{number}") for number in (1, 2, 3)]
    assert receiver.faults == []


async def test_a_bug_of_ours_ends_the_sending_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted, and begun again; the node goes on."""
    monkeypatch.setattr(webhook, "RESTART_S", 0.01)
    breaks = iter([True, True])
    look = webhook.Webhook._look

    def breaking(self: webhook.Webhook) -> list[webhook.Numbered]:
        if next(breaks, False):
            raise ZeroDivisionError
        return look(self)

    monkeypatch.setattr(webhook.Webhook, "_look", breaking)
    with receiving(Receiver()) as receiver:
        async with telling(tmp_path, receiver.url) as (node, stubs):
            await nodes.define(stubs, "other", definition_pb2.Step(id="a"))
            await define(stubs)
            await escalate(stubs, 1)
            await until(lambda: len(receiver.said) == 1)
            assert node.counters.webhook_failures == 2
            with node._shard.committed() as reader:
                assert incidents.counts(reader).open == 1
                assert next(reader.scan(keys.NOTICE), None) is not None
