"""`stepward incident` and `stepward ledger`, and both clients, against a node: from what waits to what was decided."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from stepward.client.errors import IncidentCountRefused, IncidentNotFound, InvalidArgument
from stepward.client.incident_values import IncidentState, Remedy, RemedyBy, Trouble
from stepward.client.values import JobState, StepState
from stepward.v1 import agent_service_pb2, definition_pb2, job_service_pb2
from tests.client.both_clients import BOTH, Driver
from tests.client.command_line import Ran, run
from tests.server import nodes
from tests.server.escalations import define, escalate, until_escalated
from tests.server.nodes import Stubs
from tests.server.plain_agent import agent, failed, silent


class Place(NamedTuple):
    """A node, and a connection to it."""

    address: str
    stubs: Stubs


@pytest_asyncio.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    """A node that knows `pay` and `wide`."""
    async with nodes.running(tmp_path / "data") as node, nodes.connected(node.address) as stubs:
        await define(stubs)
        yield Place(node.address, stubs)


async def typed(place: Place, *arguments: str, stdin: str | None = None) -> Ran:
    """A command line of its own, which blocks."""
    return await asyncio.to_thread(run, *arguments, "--server", place.address, stdin=stdin)


async def test_from_an_incident_to_its_end(place: Place) -> None:
    """A person sees it, is told what he can do, does it, and the ledger says that he did."""
    (job_id,) = await escalate(place.stubs, 1)

    listed = await typed(place, "incident", "list")
    shown = await typed(place, "incident", "show", "i0-1")
    why = ("--reason", "the bank says so", "--actor", "ann")
    resolved = await typed(place, "incident", "resolve", "i0-1", "--skip", "--step-output", "7", *why)
    again = await typed(place, "incident", "resolve", "i0-1", "--fail", "--reason", "twice")
    after = await typed(place, "incident", "show", "i0-1")
    told = await typed(place, "ledger", "--by", "person")
    job = await typed(place, "job", "get", job_id, "-o", "json")

    header, line = listed.lines
    assert header.split()[:4] == ["INCIDENT", "STATE", "AGE", "JOB"]
    assert line.startswith("i0-1")
    assert line.endswith(f"{job_id}  pay   ATTEMPT_UNKNOWN  NoAnswer: the bank hung up")
    assert f"about      step pay of job {job_id}" in shown.lines
    assert "(--retry | --skip | --compensate | --fail) --reason TEXT" in shown.stdout
    assert (resolved.code, resolved.stderr) == (0, "1 resolved\n")
    assert (again.code, again.stderr) == (0, "0 resolved, 1 resolved before\n")
    assert "resolved   CONTINUE by PERSON, ann at" in after.stdout
    assert after.stdout.endswith(": the bank says so\n")
    assert "--retry" not in after.stdout
    assert "CONTINUE  PERSON ann  ESCALATED -> SKIPPED" in told.lines[1]
    assert told.lines[1].endswith("the bank says so")
    assert (job.json["state"], job.json["steps"][0]["state"]) == ("JOB_STATE_COMPLETED", "STEP_STATE_SKIPPED")


async def test_many_are_resolved_after_a_question(place: Place) -> None:
    """It is told how many are meant, and which; no answer and a no change nothing."""
    await escalate(place.stubs, 7, team="red")
    await escalate(place.stubs, 1, team="blue")
    deed = ("incident", "resolve", "--label", "team=red", "--compensate", "--reason", "bank was down")

    preview = await typed(place, *deed, "--preview")
    nobody = await typed(place, *deed)
    still = await typed(place, "incident", "list", "-o", "json")
    yes = await typed(place, *deed, "--yes")
    left = await typed(place, "incident", "list", "-o", "json")
    none = await typed(place, *deed, "--yes")

    assert len(preview.lines) == 8
    assert preview.stderr == "7 open incidents are meant; nothing was done\n"
    assert (nobody.code, len(still.json)) == (2, 8)
    assert "COMPENSATE 7 open incidents? Nobody can be asked here: repeat it with --yes" in nobody.stderr
    assert "... and 2 more" in nobody.stderr
    assert (yes.code, yes.stderr) == (0, "7 resolved\n")
    assert [one["incident_id"] for one in left.json] == ["i0-8"]
    assert none.stderr == "0 open incidents are meant; nothing was done\n"


async def test_what_cannot_be_done_is_told_and_is_a_conflict(place: Place) -> None:
    """Each with its reason; the others are done."""
    await escalate(place.stubs, 2)

    ran = await typed(place, "incident", "resolve", "i0-1", "i0-9", "--skip", "--reason", "why")
    approved = await typed(place, "incident", "resolve", "--all", "--approve", "--reason", "why", "--yes")

    assert ran.code == 4
    assert "i0-9: INCIDENT_NOT_FOUND: there is no incident" in ran.stderr
    assert ran.stderr.endswith("1 resolved, 1 refused\n")
    assert approved.code == 4
    assert "i0-2: INCIDENT_STATE: incident i0-2 (ATTEMPT_UNKNOWN)" in approved.stderr
    assert "no remedy of it waits for approval" in approved.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("incident", "show", "i0-77"), 3, "there is no incident"),
        (("incident", "resolve", "--retry", "--reason", "x"), 2, "say which incidents are meant"),
        (("incident", "resolve", "i0-1", "--all", "--retry", "--reason", "x"), 2, "and not by both"),
        (
            ("incident", "resolve", "i0-1", "--approve", "--fail", "--reason", "x"),
            2,
            "--fail and --approve were said; say what is to be done by exactly one of",
        ),
        (("incident", "resolve", "i0-1", "--reason", "x"), 2, "one of --retry, --skip, --compensate"),
        (("incident", "resolve", "i0-1", "--retry"), 2, "Missing option '--reason'"),
        (("incident", "resolve", "i0-1", "--retry", "--undone", "--reason", "x"), 2, "belong to --skip"),
        (("incident", "list", "--trouble", "poisen"), 2, 'is not known, did you mean "POISON"'),
        (("incident", "list", "--job", "x"), 1, "cannot be the id of a job"),
        (("ledger", "--remedy", "pray"), 2, "is not known; there are RETRY"),
        (("ledger", "--by", "god"), 2, "is not known; there are SUPERVISOR, REPORT, PERSON"),
    ],
)
async def test_what_is_wrong_is_said(place: Place, arguments: tuple[str, ...], code: int, text: str) -> None:
    """With what to do, and the exit code of its kind."""
    ran = await typed(place, *arguments)

    assert (ran.code, text in ran.stderr) == (code, True), ran


async def test_lists_are_bounded_unless_all_is_asked_for(place: Place) -> None:
    """And say that there is more."""
    await escalate(place.stubs, 3)

    some = await typed(place, "incident", "list", "--limit", "2")
    all_ = await typed(place, "incident", "list", "--limit", "2", "--all", "-o", "jsonl")
    await typed(place, "incident", "resolve", "--all", "--fail", "--reason", "x", "--yes")
    entries = await typed(place, "ledger", "--limit", "2", "--by", "person", "--oldest-first")
    resolved = await typed(place, "incident", "list", "--state", "resolved", "--since", "1h", "-o", "json")

    assert len(some.lines) == 3
    assert "there are more than 2" in some.stderr
    assert len(all_.lines) == 3
    assert len(entries.lines) == 3
    assert "there are more than 2" in entries.stderr
    assert len(resolved.json) == 3


@pytest.mark.parametrize("client", BOTH)
async def test_both_clients(place: Place, client: Driver) -> None:
    """What they return, and what they raise."""
    job_ids = await escalate(place.stubs, 3)

    async def call(method: str, *arguments: Any, **named: Any) -> Any:
        return await asyncio.to_thread(client, place.address, method, *arguments, **named)

    listed = await call("incidents", page_size=2)
    assert [one.job_id for one in listed] == job_ids[::-1]
    assert (listed[0].open, listed[0].trouble, listed[0].state) == (True, Trouble.ATTEMPT_UNKNOWN, IncidentState.OPEN)
    assert await call("incidents", job=job_ids[0], limit=5) == [await call("incident", "i0-1")]
    with pytest.raises(IncidentNotFound):
        await call("incident", "i0-9")
    done = await call("resolve_incidents", ["i0-1"], "skip", output={"id": 1}, reason="why", actor="ann")
    assert (done.resolved, done.already, done.refused, done.left) == (1, 0, 0, 0)
    looked = await call("preview_incidents", definition="pay")
    assert (looked.matched, looked.as_of, len(looked.first)) == (2, "i0-3", 2)
    with pytest.raises(IncidentCountRefused) as refused:
        await call("resolve_matching", "FAIL", expected=1, as_of=looked.as_of, reason="why", definition="pay")
    assert refused.value.metadata == {"matched": "2", "expected": "1"}
    with pytest.raises(InvalidArgument):
        await call("resolve_incidents", ["i0-2"], "RETRY", reason="")
    done = await call("resolve_matching", "FAIL", expected=2, as_of=looked.as_of, reason="why", definition="pay")
    assert (done.resolved, done.left) == (2, 0)
    resolved = await call("incident", "i0-1")
    assert (resolved.how, resolved.by, resolved.actor, resolved.reason) == (
        Remedy.CONTINUE,
        RemedyBy.PERSON,
        "ann",
        "why",
    )
    entries = await call("ledger", by="PERSON", since=datetime.now(UTC) - timedelta(hours=1))
    assert [one.remedy for one in entries] == [Remedy.FAIL, Remedy.FAIL, Remedy.CONTINUE]
    last = entries[-1]
    assert (last.step_before, last.step_after, last.job_after) == (
        StepState.ESCALATED,
        StepState.SKIPPED,
        JobState.COMPLETED,
    )
    assert await call("ledger", by="PERSON", oldest_first=True, limit=1) == [last]


async def test_what_was_proposed_is_approved(place: Place) -> None:
    """A policy that asks for approval proposes only; a person sees what, and has it done."""
    reviewed = definition_pb2.Step(id="pay", approval=definition_pb2.APPROVAL_REQUIRED)
    reviewed.undo.action = "refund"
    await nodes.define(place.stubs, "reviewed", reviewed)
    request = job_service_pb2.SubmitJobRequest(job=nodes.submission("reviewed"))
    job_id = (await place.stubs.jobs.SubmitJob(request, timeout=nodes.CALL_S_MAX)).job_id
    async with agent(place.stubs, "pay", handler=lambda offer: failed(offer, retryable=False)):
        await until_escalated(place.stubs, job_id)

    listed = await typed(place, "incident", "list", "--proposed")
    shown = await typed(place, "incident", "show", "i0-1")
    told = await typed(place, "ledger", "--job", job_id)
    approved = await typed(place, "incident", "resolve", "--proposed", "--approve", "--reason", "agreed", "--yes")
    job = await typed(place, "job", "get", job_id, "-o", "json")

    assert "COMPENSATE waits for approval" in listed.lines[1]
    assert "proposed   COMPENSATE; it waits for approval" in shown.lines
    assert "(--approve | --retry | --skip | --compensate | --fail)" in shown.stdout
    assert "COMPENSATE (proposed)" in told.lines[1]
    assert (approved.code, approved.stderr) == (0, "1 resolved\n")
    # A failure that its handler vouches for has not happened, so that there is nothing to undo.
    assert job.json["state"] == "JOB_STATE_COMPENSATED"
    resolved = await typed(place, "incident", "show", "i0-1")
    assert "resolved   COMPENSATE by PERSON" in resolved.stdout


async def test_what_the_supervisor_did_stands_in_the_ledger(place: Place) -> None:
    """With the rule, how late it was noticed, and the states before and after; what an agent's report led to, too."""
    quick = definition_pb2.Step(id="pay")
    quick.timeouts.start_to_close.FromMilliseconds(100)
    quick.retry.attempts_max = 2
    quick.retry.initial.FromMilliseconds(1)
    await nodes.define(place.stubs, "quick", quick)
    request = job_service_pb2.SubmitJobRequest(job=nodes.submission("quick"))
    job_id = (await place.stubs.jobs.SubmitJob(request, timeout=nodes.CALL_S_MAX)).job_id
    async with agent(place.stubs, "pay", handler=silent) as joined:
        await joined.until(lambda: joined.offers)
        started = agent_service_pb2.AttemptReport(attempt=joined.offers[0].attempt, started=agent_service_pb2.Started())
        await joined.report(started)
        await joined.until(lambda: len(joined.offers) == 2)
        await joined.report(failed(joined.offers[1], retryable=False))
        await joined.until(lambda: len(joined.answers) == 2)

    told = await typed(place, "ledger", "--job", job_id, "--oldest-first", "-o", "json")

    first, second = told.json
    assert (first["trouble"], first["remedy"]) == ("TROUBLE_START_TO_CLOSE", "REMEDY_REASSIGN")
    assert (first["by"], first["step_before"], first["step_after"]) == (
        "REMEDY_BY_SUPERVISOR",
        "STEP_STATE_RUNNING",
        "STEP_STATE_RETRY_WAIT",
    )
    assert first["rule"]
    assert 0.0 <= float(first["overdue"].removesuffix("s")) < 5.0
    assert (second["trouble"], second["by"]) == ("TROUBLE_ATTEMPT_FAILED", "REMEDY_BY_REPORT")
    assert second["failure"]
