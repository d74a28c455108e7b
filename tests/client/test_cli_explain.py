"""`stepward explain` against a real server that answers by a script."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp

from stepward.client.cli import explain
from stepward.client.explanation_reading import explanation
from stepward.v1 import common_pb2, job_service_pb2
from tests.client.command_line import run
from tests.client.scripted_server import ScriptedServer

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def answer() -> job_service_pb2.ExplainJobResponse:
    """Two reasons, one with what is behind it."""
    at = Timestamp()
    at.FromDatetime(NOW + timedelta(seconds=90))
    cause = job_service_pb2.WaitReason(
        kind=job_service_pb2.WAIT_KIND_NO_AGENT, text="agent a1 offers 'pay', but on queue 'blue'"
    )
    nobody = job_service_pb2.WaitReason(
        kind=job_service_pb2.WAIT_KIND_NO_AGENT,
        text="no agent that is connected offers action 'pay' on queue 'q' in namespace 'default'",
        fix="start an agent with action 'pay' for queue 'q' in namespace 'default'",
        step_ids=["pay", "ship"],
        steps_total=7,
        at=at,
        causes=[cause],
    )
    needs = job_service_pb2.WaitReason(
        kind=job_service_pb2.WAIT_KIND_NEEDS, text="1 step waits for others: end needs pay", step_ids=["end"]
    )
    return job_service_pb2.ExplainJobResponse(
        job_id="0-1", state=common_pb2.JOB_STATE_RUNNING, summary=nobody.text, reasons=[nobody, needs]
    )


def test_it_is_a_tree_with_what_unblocks() -> None:
    """Who, why, until when; below it what is behind it, and what to do."""
    assert list(explain.lines(explanation(answer()), NOW)) == [
        "job 0-1  RUNNING",
        "  pay, ship and 5 more: no agent that is connected offers action 'pay' on queue 'q' in namespace 'default'"
        " (for 1 min 30 s at most)",
        "    agent a1 offers 'pay', but on queue 'blue'",
        "    -> start an agent with action 'pay' for queue 'q' in namespace 'default'",
        "  end: 1 step waits for others: end needs pay",
    ]


def test_the_command(server: ScriptedServer, at: list[str]) -> None:
    """As text for people, and as the message for programs."""
    server.always("ExplainJob", answer())

    shown = run("explain", "0-1", *at)
    told = run("explain", "0-1", *at, "-o", "json")

    assert shown.code == told.code == 0
    assert shown.stdout.startswith("job 0-1  RUNNING\n  pay, ship and 5 more: no agent")
    assert json.loads(told.stdout)["reasons"][0]["kind"] == "WAIT_KIND_NO_AGENT"
    assert server.requests("ExplainJob")[0].job_id == "0-1"


def test_a_kind_that_is_newer_than_the_client() -> None:
    """It is told, and its text says the rest."""
    message = answer()
    message.reasons[0].kind = 999  # type: ignore[assignment]  # a number of a newer contract

    assert explanation(message).reasons[0].kind == "UNSPECIFIED"
