"""The travel service as a process: what it says over HTTP, and that its record survives it."""

import http.client
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stepward.agents.examples.bookings import Call
from stepward.agents.examples.ledger import read
from stepward.client.demo.processes import Child
from tests.examples.travel_calls import book, cancel

KEY = "0-1/car/0"


def start(folder: Path, *options: str) -> Child:
    """A service on any port, with its record in the folder."""
    command = [sys.executable, "-m", "stepward.agents.examples.travel_service", "--port", "0"]
    return Child.start("travel", [*command, "--ledger", str(folder / "travel.jsonl"), *options], folder=folder)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Child]:
    """A service with good manners."""
    child = start(tmp_path)
    yield child
    child.stop()


def post(service: Child, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection(service.address, timeout=10)
    try:
        connection.request("POST", path, body)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def call(service: Child, wanted: Call) -> tuple[int, dict[str, Any]]:
    """One call."""
    fields = msgspec.to_builtins(wanted)
    return post(service, f"/{fields.pop('service')}/{fields.pop('verb')}", json.dumps(fields).encode())


def test_every_call_is_on_record(service: Child) -> None:
    """In order, with its answer, also when it was refused."""
    calls = [book(KEY, token=5), book(KEY, token=6), book(KEY, token=4), cancel(KEY, token=7)]
    statuses = [call(service, wanted)[0] for wanted in calls]
    entries = read(Path(service.ready["ledger"]))

    assert statuses == [200, 200, 409, 200]
    assert [entry.call for entry in entries] == calls
    assert [entry.answer.status for entry in entries] == statuses


def test_many_at_once(service: Child) -> None:
    """Calls share flushes, and none is lost or mixed up."""
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda number: call(service, book(f"0-{number}/car/0")), range(200)))
    entries = read(Path(service.ready["ledger"]))

    assert {status for status, _ in answers} == {200}
    assert sorted(entry.answer.booking for entry in entries) == sorted(answer["booking"] for _, answer in answers)
    assert len({answer["booking"] for _, answer in answers}) == 200


def test_connection_may_be_used_again(service: Child) -> None:
    """One connection, several requests."""
    connection = http.client.HTTPConnection(service.address, timeout=10)
    for _ in range(3):
        connection.request("GET", "/")
        response = connection.getresponse()
        response.read()
        assert response.status == 200
    connection.close()


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/cars", b"{}", "calls are POST /SERVICE/VERB"),
        ("/cars/steal", json.dumps(msgspec.to_builtins(book(KEY))).encode(), "Invalid enum value 'steal'"),
        ("/cars/book", b"{", "Input data was truncated"),
        ("/cars/book", b"{}", "missing required field"),
        ("/cars/book", b'{"surprise": 1}', "unknown field"),
        ("/cars/book", b"x" * 70_000, "content-length"),
    ],
)
def test_what_is_no_call(service: Child, path: str, body: bytes, says: str) -> None:
    """It is refused with what is wrong, and the service goes on."""
    status, answer = post(service, path, body)

    assert (status, answer["kind"]) == (400, "BadRequest")
    assert says in answer["message"]
    assert call(service, book(KEY))[0] == 200


def test_record_survives_a_kill(tmp_path: Path) -> None:
    """The next process knows the bookings of the one before, and cuts off the line that was being written."""
    first = start(tmp_path)
    _, booked = call(first, book(KEY))
    first.kill()
    with (tmp_path / "travel.jsonl").open("ab") as record:
        record.write(b'{"at_ms": 1, "call": {"servi')
    second = start(tmp_path)
    try:
        _, repeat = call(second, book(KEY, token=2))
    finally:
        second.stop()

    assert (repeat["booking"], repeat["effect"]) == (booked["booking"], False)
    assert len(read(tmp_path / "travel.jsonl")) == 2


def test_careless_service(tmp_path: Path) -> None:
    """Both good manners can be switched off."""
    service = start(tmp_path, "--no-deduplication", "--no-fencing")
    try:
        answers = [call(service, book(KEY, token=token))[1] for token in (2, 1)]
    finally:
        service.stop()

    assert [answer["effect"] for answer in answers] == [True, True]


def test_taken_port_is_named(service: Child, tmp_path: Path) -> None:
    """A person reads which port and why."""
    port = service.address.rpartition(":")[2]
    command = [sys.executable, "-m", "stepward.agents.examples.travel_service", "--port", port]
    other = Child.launch("other", [*command, "--ledger", str(tmp_path / "other.jsonl")], folder=tmp_path)
    other.wait(20)

    assert other.exit_code == 1
    assert f"cannot run on port {port}" in other.tail()


def test_ends_when_it_is_asked_to(service: Child) -> None:
    """Open connections do not hold it."""
    connection = http.client.HTTPConnection(service.address, timeout=10)
    connection.connect()

    assert service.stop()
    assert service.exit_code == 0
    connection.close()
