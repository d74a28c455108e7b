"""Answers of a server become errors of ours, one class for each reason."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # it ships no types

from stepward.client import channels, errors
from stepward.client.answers import read_error
from stepward.client.errors import BY_REASON, StepwardError, Violation
from stepward.server.api.errors import status
from stepward.server.config import ClusterConfig, NodeConfig
from stepward.server.core.rejections import Reason, Rejection
from stepward.v1.errors_pb2 import ErrorReason
from tests.client.scripted_server import Refused, packed

REASONS = {name.removeprefix("ERROR_REASON_") for name in ErrorReason.keys()} - {"UNSPECIFIED"}  # noqa: SIM118 - a wrapper, not a dict


def answer(refused: Refused) -> StepwardError:
    return read_error(refused.code, refused.message, [("grpc-status-details-bin", refused.details())], "a:1")


def classes(root: type[StepwardError]) -> set[type[StepwardError]]:
    return {root}.union(*(classes(kind) for kind in root.__subclasses__()))


def test_each_reason_is_one_class() -> None:
    """The table is complete, and inverse to the reasons that the classes name."""
    assert BY_REASON.keys() == REASONS
    assert {kind.reason: kind for kind in classes(StepwardError) if kind.reason} == BY_REASON
    assert len(set(BY_REASON.values())) == len(BY_REASON)


def test_the_tree_is_drawn() -> None:
    """The docstring shows every class of the module."""
    assert errors.__doc__ is not None
    drawn = {word.strip("├└─│ ") for line in errors.__doc__.splitlines() for word in line.split("  ")}
    written = {kind.__name__ for kind in classes(StepwardError) if kind.__module__ == errors.__name__}

    assert written <= drawn


@pytest.mark.parametrize("reason", sorted(REASONS))
def test_reason_comes_back(reason: str) -> None:
    """Whatever the code is, the reason decides."""
    error = answer(Refused(grpc.StatusCode.ABORTED, reason, "why", {"job_id": "0-1"}))

    assert type(error) is BY_REASON[reason]
    assert error.reason == reason
    assert (error.message, error.metadata, error.address) == ("why", {"job_id": "0-1"}, "a:1")


def test_details_come_back() -> None:
    """Violations and the retry delay are attributes; the violations are shown, too."""
    error = answer(
        Refused(
            grpc.StatusCode.INVALID_ARGUMENT,
            "INVALID_DEFINITION",
            "2 rules are broken",
            retry_delay_s=1.5,
            violations=(("steps[0].id", "is empty"), ("", "and 3 more")),
        )
    )

    assert error.violations == (Violation("steps[0].id", "is empty"), Violation("", "and 3 more"))
    assert error.retry_delay_s == 1.5
    assert str(error) == "2 rules are broken\n  steps[0].id: is empty\n  and 3 more"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.Unreachable),
        (grpc.StatusCode.INTERNAL, errors.Unreachable),
        (grpc.StatusCode.CANCELLED, errors.Unreachable),
        (grpc.StatusCode.ABORTED, errors.Unreachable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.NoAnswerInTime),
        # Deterministic: a method that nobody knows, or a message that is too large.
        (grpc.StatusCode.UNKNOWN, errors.UnknownAnswer),
        (grpc.StatusCode.UNIMPLEMENTED, errors.UnknownAnswer),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.UnknownAnswer),
        (grpc.StatusCode.UNAUTHENTICATED, errors.UnknownAnswer),
    ],
)
def test_without_a_reason_the_code_decides(code: grpc.StatusCode, kind: type[StepwardError]) -> None:
    """Every answer of ours carries a reason, so one without is not ours."""
    for metadata in ([], [("grpc-status-details-bin", b"\xff\xff")], [("other", "x")]):
        error = read_error(code, "went wrong", metadata, "a:1")

        assert type(error) is kind
        assert "a:1" in error.message


def test_reasons_of_others_are_not_ours() -> None:
    """A proxy may attach details as well, and mean something else by the same word."""
    foreign = status_pb2.Status(code=14)
    foreign.details.append(packed(error_details_pb2.ErrorInfo(domain="proxy.example", reason="NOT_LEADER")))
    metadata = [("grpc-status-details-bin", foreign.SerializeToString())]

    assert type(read_error(grpc.StatusCode.UNAVAILABLE, "x", metadata, "a:1")) is errors.Unreachable


def test_the_server_holds_the_inverse_table() -> None:
    """What the server writes for each of its reasons is what the client reads."""
    for reason in Reason:
        code, message, details = status(Rejection(reason, "why", {"job_id": "0-1"}, retry_after_ms=1_500))
        error = read_error(code, message, [("grpc-status-details-bin", details)], "a:1")

        assert type(error) is BY_REASON[reason.value]
        assert (error.message, error.metadata, error.retry_delay_s) == ("why", {"job_id": "0-1"}, 1.5)


def test_channel_options_agree_with_the_servers() -> None:
    """A server punishes pings that come too often, and another's retries would not know our rule."""
    options = dict(channels.CHANNEL_OPTIONS)

    assert options["grpc.keepalive_time_ms"] >= 2 * NodeConfig(data=Path()).ping_interval_ms_min
    assert options["grpc.enable_retries"] == 0
    assert options["grpc.max_send_message_length"] >= ClusterConfig().message_bytes_max


def test_a_reason_of_the_future_is_named() -> None:
    """A newer server may refuse for reasons that this client has no class for."""
    error = answer(Refused(grpc.StatusCode.FAILED_PRECONDITION, "MOON_IS_FULL", "the moon is full"))

    assert type(error) is errors.UnknownAnswer
    assert "MOON_IS_FULL" in error.message
    assert "upgrade the client" in error.message


@pytest.mark.parametrize(
    ("details", "clause"),
    [
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Failed to connect to remote "
            "host: Connection refused",
            "Connection refused",
        ),
        ("x: Failed to connect to remote host: Timeout occurred: FD Shutdown", "Timeout occurred: FD Shutdown"),
        (
            "errors resolving a:1: [field:error:address lookup failed for a:1: Domain name not found]",
            "Domain name not found",
        ),
        ("Socket closed", "Socket closed"),
        ("", "UNAVAILABLE"),
        ("x" * 200, "x" * 120),
    ],
)
def test_what_became_of_a_connection_is_one_clause(details: str, clause: str) -> None:
    """What gRPC tried on the way helps nobody who has only to know which node is away."""
    error = read_error(grpc.StatusCode.UNAVAILABLE, details, (), "a:1")

    assert (error.message, error.metadata) == (f"a:1: {clause}", {errors.SAID: clause})
