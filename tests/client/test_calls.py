"""The table of calls against the contract that it speaks of."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf.message_factory import GetMessageClass

import stepward.v1.job_service_pb2
from stepward.client import calls
from stepward.client.calls import RPCS, Rpc
from stepward.client.failover import Repeat
from tests.client.scripted_server import METHODS

PROTOS = Path(stepward.v1.job_service_pb2.__file__).parent


def comment(rpc: Rpc) -> str:
    """What the contract says about a call."""
    text = "\n".join(path.read_text("utf-8") for path in sorted(PROTOS.glob("*_service.proto")))
    found = re.search(rf"((?:^  //.*\n)+)^  rpc {rpc.method}\(", text, re.MULTILINE)
    assert found, f"no rpc {rpc.method}"
    return " ".join(found[1].replace("//", "").split())


@pytest.mark.parametrize("rpc", RPCS, ids=lambda rpc: rpc.method)
def test_rpc_is_in_the_contract(rpc: Rpc) -> None:
    """Path and answer are those of the descriptors."""
    method = METHODS[rpc.path]

    assert GetMessageClass(method.output_type) is rpc.answer


@pytest.mark.parametrize("rpc", RPCS, ids=lambda rpc: rpc.method)
def test_contract_allows_what_the_client_repeats(rpc: Rpc) -> None:
    """Every call says whether it may be repeated, and only those that may are."""
    said = comment(rpc)
    allowed = "May be repeated" in said or "Repeats as SubmitJob does" in said
    needs_key = "with the same idempotency key" in said or "Repeats as SubmitJob does" in said

    assert allowed or rpc.repeat is Repeat.UNSAFE
    assert needs_key == (rpc.repeat is Repeat.KEYED)


def test_all_calls_are_listed() -> None:
    """The tables of these tests speak of every call there is."""
    assert {value for value in vars(calls).values() if isinstance(value, Rpc)} == set(RPCS)


@pytest.mark.parametrize(
    "make", [calls.submit_job, lambda job: calls.run_job(job, wait_max_s=None)], ids=["submit", "run"]
)
def test_no_submission_without_a_key(make: Callable[..., object]) -> None:
    """One without could not be repeated, so none can be made."""
    given = calls.submission(
        "trip", None, version=0, idempotency_key=None, labels=None, deadline=None, namespace="default"
    )
    other = calls.submission(
        "trip", None, version=0, idempotency_key=None, labels=None, deadline=None, namespace="default"
    )

    assert re.fullmatch("[0-9a-f]{32}", given.idempotency_key)
    assert given.idempotency_key != other.idempotency_key
    given.idempotency_key = ""
    with pytest.raises(AssertionError, match="without a key"):
        make(given)


@pytest.mark.parametrize(
    ("asked", "left", "size"),
    [
        # The server's default, unless somebody wants less or more.
        (0, None, 0),
        (7, None, 7),
        (7, 3, 7),
        (0, 3, 3),
        (0, 1_000, 1_000),
        (0, 1_001, 1_000),
    ],
)
def test_page_size(asked: int, left: int | None, size: int) -> None:
    """A page is not larger than what is left to take, nor than the contract allows."""
    assert calls.size_of_page(asked, left) == size
