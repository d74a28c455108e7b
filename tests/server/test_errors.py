"""One table from reasons to gRPC codes: complete, as the contract says, and inverse to the client's."""

from __future__ import annotations

import re
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # ships no types

from stepward.client import errors as client_errors
from stepward.server.api import errors
from stepward.server.core.rejections import Reason, Rejection, Violation
from stepward.server.core.rows import CancelReason, JobState, StartMode, StepState
from stepward.v1 import agent_service_pb2, common_pb2, errors_pb2
from tests.server.nodes import unpacked

PROTO = Path(__file__).parents[2] / "proto/stepward/v1/errors.proto"


def contract_reasons() -> set[str]:
    """The names of the public enum, without prefix."""
    return {name.removeprefix("ERROR_REASON_") for name, _ in errors_pb2.ErrorReason.items()} - {"UNSPECIFIED"}


def test_every_reason_of_the_contract_has_a_code() -> None:
    """And no other has one."""
    assert {reason.value for reason in errors.CODES} == {reason.value for reason in Reason} == contract_reasons()


def test_codes_are_those_that_the_contract_says() -> None:
    """The comment of each reason begins with its code."""
    text = PROTO.read_text()
    for reason, code in errors.CODES.items():
        before = text[: text.index(f"  ERROR_REASON_{reason.value} =")]
        comment = re.split(r"^  ERROR_REASON_.*$|^enum .*$", before, flags=re.MULTILINE)[-1].lstrip()
        assert comment.startswith(f"// {code.name}: "), reason


def test_client_knows_every_reason() -> None:
    """Its table is the inverse: one class for each reason, and each class of one reason."""
    assert set(client_errors.BY_REASON) == contract_reasons()
    assert all(error.reason == reason for reason, error in client_errors.BY_REASON.items())


@pytest.mark.parametrize("reason", list(Reason))
def test_exactly_one_error_info(reason: Reason) -> None:
    """Whatever else stands in the details."""
    rejection = Rejection(reason, "what happened", {"job_id": "0-1"}, (Violation("a", "b"),), retry_after_ms=1_500)

    code, message, raw = errors.status(rejection)

    status = status_pb2.Status.FromString(raw)
    (info,) = unpacked(status, error_details_pb2.ErrorInfo)
    assert (info.domain, info.reason, dict(info.metadata)) == ("stepward", reason.value, {"job_id": "0-1"})
    assert (code, message) == (errors.CODES[reason], "what happened")
    assert status.code == code.value[0]
    assert unpacked(status, error_details_pb2.RetryInfo)[0].retry_delay.ToMilliseconds() == 1_500
    assert unpacked(status, error_details_pb2.BadRequest)[0].field_violations[0].field == "a"


@pytest.mark.parametrize("character", ["x", "\u00e9", "\U0001f600", "\ud800"])
def test_details_fit_into_a_clients_metadata(character: str) -> None:
    """However long a message or however many the violations: 8 KiB is what clients take unless told otherwise."""
    long = character * 10_000
    violations = tuple(Violation(f"{n}{long}", long) for n in range(1_000))

    _, message, raw = errors.status(Rejection(Reason.JOB_NOT_FOUND, long, {"job_id": long}, violations))

    percent_encoded = 3 * len(message.encode())
    base64_encoded = -(-len(raw) // 3) * 4
    assert percent_encoded + base64_encoded < 8_192 - 512


@pytest.mark.parametrize(
    ("ours", "public", "prefix"),
    [
        (JobState, common_pb2.JobState, "JOB_STATE"),
        (StepState, common_pb2.StepState, "STEP_STATE"),
        (CancelReason, agent_service_pb2.CancelReason, "CANCEL_REASON"),
        (StartMode, agent_service_pb2.OfferStart, "OFFER_START"),
    ],
)
def test_numbers_of_the_rows_are_those_of_the_contract(ours: type, public: object, prefix: str) -> None:
    """They pass from row to message as they are."""
    assert {f"{prefix}_{one.name}": one.value for one in ours if one.value} == {  # type: ignore[attr-defined]  # members of an enum
        name: number
        for name, number in public.items()  # type: ignore[attr-defined]  # an enum's wrapper
        if number
    }


def test_grpc_codes_are_not_ok() -> None:
    """A refusal never looks like an answer."""
    assert grpc.StatusCode.OK not in errors.CODES.values()
