"""SupervisionService over real sockets: what waits for a person, how many are resolved at once, and the ledger."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from stepward.server.api import incident_lists, resolving, slices
from stepward.server.core.parts import By, Remedy, Resolution, Trouble
from stepward.v1 import common_pb2, job_service_pb2
from stepward.v1 import supervision_service_pb2 as pb
from tests.server import nodes
from tests.server.escalations import define, escalate, unknown
from tests.server.nodes import CALL_S_MAX, Stubs, refused
from tests.server.plain_agent import agent

S = CALL_S_MAX


@pytest_asyncio.fixture
async def stubs(tmp_path: Path) -> AsyncIterator[Stubs]:
    """A connection to a node that knows `pay`, of one step that is not repeated, and a wide one of the same kind."""
    async with nodes.running(tmp_path / "data") as node, nodes.connected(node.address) as stubs:
        await define(stubs)
        yield stubs
        assert node.counters.call_failures == node.counters.rule_failures == 0


async def list_all(stubs: Stubs, *, page_size: int = 0, namespace: str = "", **filter_: Any) -> list[pb.Incident]:
    """All pages of incidents."""
    found: list[pb.Incident] = []
    token = ""
    while True:
        request = pb.ListIncidentsRequest(
            filter=pb.IncidentFilter(**filter_), page_size=page_size, page_token=token, namespace=namespace
        )
        page = await stubs.supervision.ListIncidents(request, timeout=S)
        assert len(page.incidents) <= (page_size or 50)
        found += page.incidents
        token = page.next_page_token
        if not token:
            return found


async def resolve(stubs: Stubs, **fields: Any) -> pb.ResolveIncidentsResponse:
    request = pb.ResolveIncidentsRequest(**{"reason": "because", "actor": "ann", **fields})
    return await stubs.supervision.ResolveIncidents(request, timeout=S)


def test_numbers_are_those_of_the_core() -> None:
    """Every member has the name and the number that the contract gives it."""
    for type_, enum, prefix, zero in (
        (pb.Trouble, Trouble, "TROUBLE_", "UNSPECIFIED"),
        (pb.Remedy, Remedy, "REMEDY_", "NONE"),
        (pb.RemedyBy, By, "REMEDY_BY_", "UNSPECIFIED"),
        (pb.Resolution, Resolution, "RESOLUTION_", "UNSPECIFIED"),
    ):
        theirs = {name.removeprefix(prefix): number for name, number in type_.items() if number}
        ours = {member.name: member.value for member in enum if member.name != zero}
        assert theirs == ours, type_


async def test_what_waits_is_listed_the_newest_first(stubs: Stubs) -> None:
    """With where, since when and why; and every page is bounded."""
    job_ids = await escalate(stubs, 3)

    found = await list_all(stubs, page_size=2)

    assert [(one.incident_id, one.job_id) for one in found] == list(
        zip(("i0-3", "i0-2", "i0-1"), reversed(job_ids), strict=True)
    )
    one = found[0]
    assert (one.state, one.step_id, one.definition_name) == (pb.INCIDENT_STATE_OPEN, "pay", "pay")
    assert (one.failure.kind, one.failure.message) == ("NoAnswer", "the bank hung up")
    assert one.trouble == pb.TROUBLE_ATTEMPT_UNKNOWN
    assert not one.HasField("resolved_at")
    assert (await stubs.supervision.ListIncidents(pb.ListIncidentsRequest(page_size=1), timeout=S)).open == 3


async def test_filters(stubs: Stubs) -> None:
    """Each by itself; all that is said must hold."""
    red = await escalate(stubs, 2, team="red")
    (blue,) = await escalate(stubs, 1, team="blue")
    await resolve(stubs, incident_ids=["i0-1"], resolution=pb.RESOLUTION_FAIL)
    third = (await stubs.supervision.GetIncident(pb.GetIncidentRequest(incident_id="i0-3"), timeout=S)).incident

    async def ids(**filter_: Any) -> list[str]:
        return [one.incident_id.removeprefix("i0-") for one in await list_all(stubs, **filter_)]

    assert await ids() == ["3", "2"]
    assert await ids(state=pb.INCIDENT_STATE_RESOLVED) == ["1"]
    assert await ids(state=pb.INCIDENT_STATE_ALL) == ["3", "2", "1"]
    assert await ids(labels={"team": "red"}) == ["2"]
    assert await ids(labels={"team": "red"}, state=pb.INCIDENT_STATE_ALL) == ["2", "1"]
    assert await ids(job_id=blue) == ["3"]
    assert await ids(job_id=red[0]) == []
    assert await ids(job_id=red[0], state=pb.INCIDENT_STATE_RESOLVED) == ["1"]
    assert await ids(definition_name="pay", step_id="pay") == ["3", "2"]
    assert await ids(definition_name="other") == []
    assert await ids(step_id="other") == []
    assert await ids(trouble=pb.TROUBLE_ATTEMPT_UNKNOWN) == ["3", "2"]
    assert await ids(trouble=pb.TROUBLE_POISON) == []
    assert await ids(proposed_only=True) == []
    assert await ids(namespace="elsewhere") == []
    assert await ids(opened_from=third.opened_at) == ["3"]
    assert await ids(opened_before=third.opened_at) == ["2"]
    assert await ids(opened_before=third.opened_at, state=pb.INCIDENT_STATE_ALL) == ["2", "1"]


async def test_a_page_looks_at_a_bounded_number_of_rows(stubs: Stubs, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few match: it ends, perhaps empty, and its token goes on behind what was looked at."""
    await escalate(stubs, 5)
    monkeypatch.setattr(incident_lists, "SCANNED_MAX", 2)
    request = pb.ListIncidentsRequest(filter=pb.IncidentFilter(step_id="other"))
    page = await stubs.supervision.ListIncidents(request, timeout=S)
    assert (len(page.incidents), bool(page.next_page_token)) == (0, True)

    monkeypatch.setattr(slices, "SLICE_MS_MAX", 0.0)
    assert len(await list_all(stubs)) == 5
    assert await list_all(stubs, step_id="other") == []


async def test_one_incident(stubs: Stubs) -> None:
    """By its name; what names none is not found, also as old rows tell it."""
    (job_id,) = await escalate(stubs, 1)
    await resolve(stubs, incident_ids=["i0-1"], resolution=pb.RESOLUTION_SKIP)

    found = (await stubs.supervision.GetIncident(pb.GetIncidentRequest(incident_id="i0-1"), timeout=S)).incident

    assert (found.job_id, found.state) == (job_id, pb.INCIDENT_STATE_RESOLVED)
    assert (found.how, found.by, found.actor, found.reason) == (
        pb.REMEDY_CONTINUE,
        pb.REMEDY_BY_PERSON,
        "ann",
        "because",
    )
    assert found.HasField("resolved_at")
    for name in ("i0-2", "i1-1", "i0-01", "0-1", "i0-" + "9" * 19, "x" * 10_000, ""):
        for consistency in (common_pb2.CONSISTENCY_STALE, common_pb2.CONSISTENCY_LINEARIZABLE):
            request = pb.GetIncidentRequest(incident_id=name, consistency=consistency)
            why = await refused(stubs.supervision.GetIncident(request, timeout=S))
            assert why.reason == "INCIDENT_NOT_FOUND", name


async def test_named_ones_are_resolved_each_on_its_own(stubs: Stubs) -> None:
    """What was resolved before stays so, and what cannot be is refused by itself."""
    await escalate(stubs, 2)
    await resolve(stubs, incident_ids=["i0-1"], resolution=pb.RESOLUTION_FAIL)

    answer = await resolve(stubs, incident_ids=["i0-1", "i0-2", "i0-2", "i0-9"], resolution=pb.RESOLUTION_RETRY)

    assert (answer.resolved, answer.already, answer.refused, answer.left) == (1, 1, 1, 0)
    assert [(one.incident_id, one.reason) for one in answer.refusals] == [("i0-9", "INCIDENT_NOT_FOUND")]
    answer = await resolve(stubs, incident_ids=["i0-1", "i0-2"], resolution=pb.RESOLUTION_RETRY)
    assert (answer.resolved, answer.already, answer.refused) == (0, 2, 0)


async def test_an_output_stands_in_place_of_that_of_the_step(stubs: Stubs) -> None:
    """Byte for byte."""
    (job_id,) = await escalate(stubs, 1)
    output = nodes.json_payload(b'{"price": 1.10}')
    await resolve(stubs, incident_ids=["i0-1"], resolution=pb.RESOLUTION_SKIP, output=output)

    job = (await stubs.jobs.GetJob(job_service_pb2.GetJobRequest(job_id=job_id), timeout=S)).job
    assert (job.state, job.steps[0].output.data) == (common_pb2.JOB_STATE_COMPLETED, b'{"price": 1.10}')


async def test_a_filter_means_what_was_looked_at(stubs: Stubs) -> None:
    """The preview counts and does nothing; what is opened behind it is not touched; another count refuses all."""
    await escalate(stubs, 3, team="red")
    filter_ = pb.IncidentFilter(labels={"team": "red"})
    preview = await resolve(stubs, filter=filter_, preview=True, reason="")
    assert (preview.matched, preview.as_of, preview.resolved) == (3, "i0-3", 0)
    assert [one.incident_id for one in preview.first] == ["i0-3", "i0-2", "i0-1"]
    assert len(await list_all(stubs)) == 3
    await escalate(stubs, 1, team="red")
    deed: dict[str, Any] = {"filter": filter_, "resolution": pb.RESOLUTION_FAIL, "as_of": preview.as_of}

    why = await refused(
        stubs.supervision.ResolveIncidents(
            pb.ResolveIncidentsRequest(**deed, expected_count=2, reason="because"), timeout=S
        )
    )
    assert (why.reason, why.metadata) == ("INCIDENT_COUNT", {"matched": "3", "expected": "2"})
    assert len(await list_all(stubs)) == 4

    answer = await resolve(stubs, **deed, expected_count=3)
    assert (answer.matched, answer.resolved, answer.left) == (3, 3, 0)
    assert [one.incident_id for one in await list_all(stubs)] == ["i0-4"]


async def test_many_are_resolved_over_several_calls(stubs: Stubs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call resolves so many and says how many are left; the next one goes on until none is."""
    monkeypatch.setattr(resolving, "RESOLVED_MAX", 20)
    monkeypatch.setattr(slices, "SLICE_MS_MAX", 0.0)
    (job_id,) = await escalate(stubs, 1, "wide")
    await _until_open(stubs, 50)
    expected, steps = 50, []
    while expected:
        answer = await resolve(
            stubs, filter=pb.IncidentFilter(job_id=job_id), resolution=pb.RESOLUTION_SKIP, expected_count=expected
        )
        steps.append((answer.matched, answer.resolved, answer.left))
        expected = answer.left

    assert steps == [(50, 20, 30), (30, 20, 10), (10, 10, 0)]
    assert await list_all(stubs) == []
    job = (await stubs.jobs.GetJob(job_service_pb2.GetJobRequest(job_id=job_id), timeout=S)).job
    assert job.state == common_pb2.JOB_STATE_COMPLETED


async def _until_open(stubs: Stubs, count: int) -> None:
    """The agent has gone, and what it had not reported is escalated with the rest."""
    async with agent(stubs, "pay", handler=unknown, slots=200):
        for _ in range(1_000):
            if (await stubs.supervision.ListIncidents(pb.ListIncidentsRequest(page_size=1), timeout=S)).open == count:
                return
    raise AssertionError(count)


async def test_a_filter_may_not_mean_too_many(stubs: Stubs, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the bound it is granted; one more, and it has to be narrowed."""
    await escalate(stubs, 3)
    monkeypatch.setattr(resolving, "MATCHED_MAX", 3)
    assert (await resolve(stubs, filter=pb.IncidentFilter(), preview=True)).matched == 3
    monkeypatch.setattr(resolving, "MATCHED_MAX", 2)

    request = pb.ResolveIncidentsRequest(filter=pb.IncidentFilter(), preview=True)
    why = await refused(stubs.supervision.ResolveIncidents(request, timeout=S))

    assert why.reason == "INVALID_ARGUMENT"
    assert "more than 2 incidents; narrow it" in why.message


@pytest.mark.parametrize(
    ("fields", "field", "text"),
    [
        ({}, "incident_ids", "exactly one of them"),
        ({"incident_ids": ["i0-1"], "filter": pb.IncidentFilter()}, "incident_ids", "exactly one of them"),
        ({"incident_ids": ["i0-1"] * 1_001}, "incident_ids", "has 1001 entries"),
        ({"incident_ids": ["i0-1"], "preview": True}, "preview", "is only for a filter"),
        ({"incident_ids": ["i0-1"], "expected_count": 1}, "expected_count", "is only for a filter"),
        ({"incident_ids": ["i0-1"], "as_of": "i0-1"}, "as_of", "is only for a filter"),
        ({"incident_ids": ["i0-1"], "resolution": pb.RESOLUTION_FAIL, "undone": True}, "undone", "is only for SKIP"),
        (
            {"incident_ids": ["i0-1"], "resolution": pb.RESOLUTION_RETRY, "output": nodes.json_payload(b"1")},
            "output",
            "is only for SKIP",
        ),
        ({"filter": pb.IncidentFilter(state=pb.INCIDENT_STATE_ALL)}, "filter.state", "must be OPEN"),
        ({"filter": pb.IncidentFilter(job_id="x")}, "filter.job_id", "cannot be the id of a job"),
    ],
)
async def test_what_can_never_be_granted(stubs: Stubs, fields: dict[str, Any], field: str, text: str) -> None:
    """It is refused at the door, and the refusal names the field."""
    request = pb.ResolveIncidentsRequest(**{"reason": "why", "resolution": pb.RESOLUTION_SKIP, **fields})
    why = await refused(stubs.supervision.ResolveIncidents(request, timeout=S))

    assert why.reason == "INVALID_ARGUMENT"
    assert any(at == field and text in said for at, said in why.violations), why.violations


async def ledger(
    stubs: Stubs, *, oldest_first: bool = False, page_size: int = 2, **filter_: Any
) -> list[pb.LedgerEntry]:
    """All pages of the ledger."""
    found: list[pb.LedgerEntry] = []
    token = ""
    while True:
        request = pb.ListLedgerRequest(
            filter=pb.LedgerFilter(**filter_), page_size=page_size, page_token=token, oldest_first=oldest_first
        )
        page = await stubs.supervision.ListLedger(request, timeout=S)
        found += page.entries
        token = page.next_page_token
        if not token:
            return found


async def test_the_ledger_tells_what_a_person_did(stubs: Stubs) -> None:
    """Each entry once, in one order or the other, over pages of any size; filters by job, by whom, and in time."""
    job_ids = await escalate(stubs, 3)
    await resolve(stubs, incident_ids=["i0-1", "i0-2"], resolution=pb.RESOLUTION_SKIP)
    await resolve(stubs, incident_ids=["i0-3"], resolution=pb.RESOLUTION_FAIL)

    by_person = await ledger(stubs, by=pb.REMEDY_BY_PERSON)

    assert [one.job_id for one in by_person] == job_ids[::-1]
    assert [one.remedy for one in by_person] == [pb.REMEDY_FAIL, pb.REMEDY_CONTINUE, pb.REMEDY_CONTINUE]
    one = by_person[0]
    assert (one.trouble, one.actor, one.reason, one.step_id) == (pb.TROUBLE_ATTEMPT_UNKNOWN, "ann", "because", "pay")
    assert (one.step_before, one.step_after) == (common_pb2.STEP_STATE_ESCALATED, common_pb2.STEP_STATE_FAILED)
    assert (one.job_before, one.job_after) == (common_pb2.JOB_STATE_ESCALATED, common_pb2.JOB_STATE_FAILED)
    assert one.failure == "NoAnswer: the bank hung up"
    everything = [entry.serial for entry in await ledger(stubs)]
    assert everything == sorted(everything, reverse=True)
    for size in (1, 2, 1_000):
        assert [entry.serial for entry in await ledger(stubs, page_size=size)] == everything
        turned = await ledger(stubs, page_size=size, oldest_first=True)
        assert [entry.serial for entry in turned] == everything[::-1]
    for job_id in job_ids:
        for oldest_first in (False, True):
            of_job = await ledger(stubs, job_id=job_id, page_size=1, oldest_first=oldest_first)
            expected = [entry for entry in await ledger(stubs) if entry.job_id == job_id]
            assert of_job == (expected[::-1] if oldest_first else expected)
            assert of_job
    assert await ledger(stubs, job_id="0-" + "0" * 32) == []
    assert await ledger(stubs, epoch=one.epoch, by=pb.REMEDY_BY_PERSON) == by_person
    assert await ledger(stubs, epoch=one.epoch + 1) == []
    assert await ledger(stubs, trouble=pb.TROUBLE_POISON) == []
    assert await ledger(stubs, remedy=pb.REMEDY_FAIL) == by_person[:1]
    assert await ledger(stubs, definition_name="other") == []


async def test_the_ledger_in_time(stubs: Stubs) -> None:
    """From a moment on and before one, in both orders, however far into the ledger that is."""
    await escalate(stubs, 4)
    for number in range(1, 5):
        await resolve(stubs, incident_ids=[f"i0-{number}"], resolution=pb.RESOLUTION_SKIP)
    everything = await ledger(stubs, oldest_first=True)
    for entry in everything:
        for oldest_first in (True, False):
            since: dict[str, Any] = {"from": entry.at}
            late = await ledger(stubs, oldest_first=oldest_first, **since)
            early = await ledger(stubs, oldest_first=oldest_first, before=entry.at)
            turned = everything if oldest_first else everything[::-1]
            assert late == [one for one in turned if one.at.ToMilliseconds() >= entry.at.ToMilliseconds()]
            assert early == [one for one in turned if one.at.ToMilliseconds() < entry.at.ToMilliseconds()]


@pytest.mark.parametrize("token", ["x", "AAAA", "x" * 2_000])
async def test_a_token_of_another_list_is_refused(stubs: Stubs, token: str) -> None:
    """Also one that was made for another filter, or for the other list."""
    await escalate(stubs, 2)
    page = await stubs.supervision.ListIncidents(pb.ListIncidentsRequest(page_size=1), timeout=S)
    for wrong in (token, page.next_page_token):
        listing = pb.ListIncidentsRequest(page_token=wrong, filter=pb.IncidentFilter(step_id="pay"))
        assert (await refused(stubs.supervision.ListIncidents(listing, timeout=S))).reason == "PAGE_TOKEN_INVALID"
        entries = pb.ListLedgerRequest(page_token=wrong)
        assert (await refused(stubs.supervision.ListLedger(entries, timeout=S))).reason == "PAGE_TOKEN_INVALID"
