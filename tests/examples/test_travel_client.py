"""What a handler makes of the travel service's answers, and of those that do not come."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from stepward.agents import AgentError, Context, Permanent, StepFailed, Unknown
from stepward.agents.context import AttemptFacts
from stepward.agents.examples.ledger import read
from stepward.agents.examples.travel_client import Travel
from stepward.client.demo.processes import Child

KEY = "0-1/car/0"

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def attempt(*, token: int = 1, number: int = 1, undo: bool = False, deadline_ms: int = 60_000) -> Context:
    """One attempt at the car of a trip."""
    facts = AttemptFacts(
        job_id="0-1",
        step_id="car",
        token=token,
        idempotency_key=f"{KEY}/undo" if undo else KEY,
        attempt=number,
        definition_name="trip",
        undo=undo,
        deadline_ms=deadline_ms,
    )
    return Context(facts, steady_ms=lambda: 0, on_progress=lambda _: None)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Child]:
    """The real one."""
    command = [sys.executable, "-m", "stepward.agents.examples.travel_service", "--port", "0"]
    child = Child.start("travel", [*command, "--ledger", str(tmp_path / "travel.jsonl")], folder=tmp_path)
    yield child
    child.stop()


@asynccontextmanager
async def impostor(serve: Serve) -> AsyncIterator[Travel]:
    """A service that does not behave, and whose connections are gone at the end."""
    connections: list[asyncio.Task[None]] = []

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await serve(reader, writer)
        writer.close()
        await writer.wait_closed()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(asyncio.create_task(connection(reader, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        yield Travel(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await asyncio.gather(*connections)


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take the request and never answer."""
    await reader.read(-1)


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take the request and close the connection."""
    await reader.readuntil(b"\r\n\r\n")


async def half_an_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Begin to answer, and close the connection."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b'HTTP/1.1 200 OK\r\n\r\n{"status":200,"boo')


async def test_attempts_of_one_step_get_one_booking(service: Child) -> None:
    """The key is the step's, the token the attempt's; the record has both, and who called."""
    travel = Travel(service.address)
    first = await travel.book(attempt(token=1), "cars", "small")
    second = await travel.book(attempt(token=2, number=2), "cars", "small")
    undone = await travel.cancel(attempt(token=3, undo=True), "cars")
    calls = [entry.call for entry in read(Path(service.ready["ledger"]))]

    assert first == second == undone
    assert [call.token for call in calls] == [1, 2, 3]
    assert [call.attempt for call in calls] == [1, 2, 1]
    assert [call.key for call in calls] == [KEY, KEY, f"{KEY}/undo"]
    assert calls[2].cancels == KEY


async def test_undo_of_what_never_happened_succeeds(service: Child) -> None:
    """An undo may be of a step that only may have happened."""
    undone = await Travel(service.address).cancel(attempt(token=3, undo=True), "cars")

    assert undone.booking == ""


@pytest.mark.parametrize(
    ("wish", "kind"),
    [
        ("none-left", "CarUnavailable"),
        ("fails-once", "TryLater"),
    ],
)
async def test_refusal_has_the_kind_of_the_service(service: Child, wish: str, kind: str) -> None:
    """Whether it is worth another attempt stands in the definition, not here."""
    with pytest.raises(StepFailed) as failed:
        await Travel(service.address).book(attempt(), "cars", wish)

    assert (failed.value.kind, type(failed.value)) == (kind, StepFailed)


async def test_overtaken_attempt_fails_for_good(service: Child) -> None:
    """A newer attempt was there before it."""
    travel = Travel(service.address)
    await travel.book(attempt(token=2), "cars", "small")
    with pytest.raises(Permanent) as failed:
        await travel.book(attempt(token=1), "cars", "small")

    assert failed.value.kind == "StaleToken"


async def test_service_that_is_not_there() -> None:
    """Nothing was sent, so nothing has happened."""
    async with impostor(hang_up) as travel:
        pass
    with pytest.raises(StepFailed) as failed:
        await travel.book(attempt(), "cars", "small")

    assert failed.value.kind == "TravelUnreachable"
    assert not await travel.answers()


@pytest.mark.parametrize("serve", [hang_up, half_an_answer])
async def test_answer_that_does_not_come_is_unknown(serve: Serve) -> None:
    """The request was sent: it may have been booked, and a step that gives up now must be undone."""
    async with impostor(serve) as travel:
        with pytest.raises(Unknown) as unknown:
            await travel.book(attempt(), "cars", "small")

    assert unknown.value.kind == "NoAnswer"


async def test_answer_that_comes_too_late_is_unknown() -> None:
    """The attempt's own time bounds the call."""
    async with impostor(silence) as travel:
        with pytest.raises(AgentError) as unknown:
            await travel.book(attempt(deadline_ms=50), "cars", "small")

    assert isinstance(unknown.value, Unknown)
