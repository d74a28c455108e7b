"""How a watchdog tells a change: bounded in time, in number and in size, whatever the other side does."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepward.client.watchdog import posting, telling
from stepward.client.watchdog.dog import Watchdog
from stepward.client.watchdog.posting import LEFT_BEHIND_MAX, NotTaken, Poster, check_url, signature
from stepward.client.watchdog.settings import Settings
from stepward.client.watchdog.telling import (
    CHANGES_WAITING_MAX,
    OUTPUT_BYTES_MAX,
    REASONS_MAX,
    TEXT_CHARACTERS_MAX,
    WEBHOOK_TRIES_MAX,
    Command,
    DeadMan,
    Teller,
    Webhook,
    body_of,
)
from stepward.client.watchdog.verdicts import Change, Kind, Level, Reason, Verdict
from tests.cluster.rig import until
from tests.cluster.watch import HOOK, PING, Hearer


def change(number: int = 1, *, reasons: int = 1, text: str = "why") -> Change:
    verdict = Verdict(tuple(Reason(Kind.BRAKE, Level.CRITICAL, text) for _ in range(reasons)))
    return Change(
        number=number,
        before=Level.WELL,
        verdict=verdict,
        level=Level.CRITICAL,
        at_wall_s=1_800_000_000.5,
        cluster_id="c",
    )


class Log:
    """What was logged."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def __call__(self, event: str, **fields: Any) -> None:
        self.lines.append({"event": event, **fields})


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def hearer() -> Iterator[Hearer]:
    with Hearer().listening() as hearer:
        yield hearer


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"


def command(*code: str, log: Log) -> Command:
    return Command((sys.executable, "-c", "\n".join(code)), {"PATH": "/usr/bin:/bin"}, log)


async def test_command_is_told_by_its_environment(log: Log) -> None:
    code = "import os; print(*(f'{key}={value}' for key, value in sorted(os.environ.items()) if 'WATCHDOG' in key))"
    why = await command(code, log=log).tell(change())

    assert why == ""
    assert log.lines[0]["output"].split() == [
        "STEPWARD_WATCHDOG_AT=2027-01-15T08:00:00.500+00:00",
        "STEPWARD_WATCHDOG_BEFORE=WELL",
        "STEPWARD_WATCHDOG_CLUSTER_ID=c",
        "STEPWARD_WATCHDOG_KINDS=BRAKE",
        "STEPWARD_WATCHDOG_LEVEL=CRITICAL",
        "STEPWARD_WATCHDOG_TEXT=why",
    ]


async def test_command_that_fails_is_told(log: Log) -> None:
    assert (
        await command("import sys", "print('no such alert')", "sys.exit(7)", log=log).tell(change())
        == "it ended with 7"
    )
    assert log.lines[0]["output"] == "no such alert\n"
    assert "cannot be run: No such file" in await Command(("nosuch-program",), {}, log).tell(change())


async def test_command_that_hangs_is_ended_with_all_that_it_started(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "COMMAND_S_MAX", 1.0)
    pid = tmp_path / "pid"
    inner = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    code = ("import subprocess, sys, time", f"subprocess.Popen([sys.executable, '-c', {inner!r}])", "time.sleep(60)")
    began_s = time.monotonic()
    why = await command(*code, log=log).tell(change())

    assert why == "it was ended after 1 s"
    assert time.monotonic() - began_s < 10
    if pid.exists():
        # It is gone as soon as the kernel has taken notice.
        await until(lambda: not _runs(int(pid.read_text())), seconds_max=5, what="it is gone")


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


async def test_output_of_a_command_is_bounded(log: Log) -> None:
    """It can say as much as it likes; the beginning is kept, and the rest does not hold it up."""
    assert await command("print('x' * 10_000_000)", log=log).tell(change()) == ""
    assert log.lines[0]["output"] == "x" * OUTPUT_BYTES_MAX


def test_what_is_told_is_bounded() -> None:
    at, past = (body_of(change(reasons=count)) for count in (REASONS_MAX, REASONS_MAX + 1))

    assert len(at["reasons"]) == len(past["reasons"]) == REASONS_MAX
    assert len(body_of(change(text="x" * (TEXT_CHARACTERS_MAX + 1)))["text"]) == TEXT_CHARACTERS_MAX


async def test_webhook_is_signed_and_repeated_under_one_delivery(
    hearer: Hearer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "WEBHOOK_WAIT_S", 0.01)
    hearer.answers.extend([500, 429])
    why = await Webhook(hearer.address + HOOK, b"secret", Poster()).tell(change())
    taken = hearer.requests(HOOK)

    assert why == ""
    assert len(taken) == 3
    assert len({request.headers["Stepward-Delivery"] for request in taken}) == 1
    for request in taken:
        given = request.headers["Stepward-Signature"]
        assert given == signature(b"secret", request.body, int(given[2:].partition(",")[0]))
        assert request.headers["Content-Type"] == "application/json"
    assert json.loads(taken[0].body) == body_of(change())


async def test_webhook_gives_up(hearer: Hearer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "WEBHOOK_WAIT_S", 0.01)
    hearer.answers.extend([500] * (WEBHOOK_TRIES_MAX + 1))
    why = await Webhook(hearer.address + HOOK, b"", Poster()).tell(change())

    assert why == "it answered 500 (tried 3 times)"
    assert len(hearer.requests(HOOK)) == WEBHOOK_TRIES_MAX
    assert "Stepward-Signature" not in hearer.requests(HOOK)[0].headers


@pytest.mark.parametrize("body", [b"{}", None])
@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_redirect_is_no_receipt(hearer: Hearer, body: bytes | None, code: int) -> None:
    """Nobody sees the body of a POST, and a GET would go to somebody else. Where it leads is told."""
    hearer.answers.append(code)
    with pytest.raises(NotTaken, match=f"it answered {code}, and leads to .*{PING}: give that address"):
        await Poster().send(hearer.address + HOOK, body)

    assert [request.body for request in hearer.requests(HOOK)] == [body or b""]
    assert hearer.requests(PING) == []


def test_signature_is_what_the_page_says() -> None:
    """A receiver computes the same with any library: this is the example of docs/watchdog.md."""
    assert signature(b"secret", b"{}", 1_800_000_000) == (
        "t=1800000000,v1=bb7079132825ac793cea8c013c1dd24d926b9b02132245b10588d9e5c0df70d7"
    )


async def test_server_that_says_nothing_is_left_behind(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many requests may hang, then none is sent until one has ended."""
    poster = Poster()
    # The thread waits longer than whoever sent it.
    monkeypatch.setattr(posting, "REQUEST_S_MAX", 0.1)
    real = posting._request

    def slow(*given: Any) -> str:
        time.sleep(1.0)
        return real(*given)

    monkeypatch.setattr(posting, "_request", slow)
    for _ in range(LEFT_BEHIND_MAX):
        with pytest.raises(NotTaken, match="no answer within"):
            await poster.send(silent)
    with pytest.raises(NotTaken, match="4 earlier requests hang"):
        await poster.send(silent)
    async with asyncio.timeout(10):
        while True:
            try:
                await poster.send(silent)
            except NotTaken as error:
                if "earlier" not in str(error):
                    break
                await asyncio.sleep(0.05)


async def test_webhook_that_hangs_does_not_silence_the_pings(
    hearer: Hearer, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many of its requests are left behind."""
    monkeypatch.setattr(telling, "WEBHOOK_WAIT_S", 0.0)
    let_go = threading.Event()
    real = posting._request

    def hangs(url: str, *given: Any) -> str:
        if url.endswith(HOOK):
            let_go.wait(30)
        return real(url, *given)

    monkeypatch.setattr(posting, "_request", hangs)
    settings = Settings(addresses=("127.0.0.1:1",), webhook=hearer.address + HOOK, dead_man=hearer.address + PING)
    watchdog = Watchdog(settings, log=log, on_change=lambda change: None)
    (teller,) = watchdog.tellers
    dead_man = watchdog.dead_man
    assert dead_man is not None
    with monkeypatch.context() as quick:
        quick.setattr(posting, "REQUEST_S_MAX", 0.05)
        whys = [await teller._tell(change()) for _ in range(LEFT_BEHIND_MAX)]
    assert f"{LEFT_BEHIND_MAX} earlier requests hang" in whys[-1]

    running = asyncio.create_task(dead_man.run(lambda: True, 0.02))
    await until(lambda: dead_man.pings > 1 or dead_man.failed > 1, seconds_max=10, what="it pings")
    running.cancel()
    let_go.set()

    assert dead_man.failed == 0


async def test_address_where_nobody_is(log: Log) -> None:
    with pytest.raises(NotTaken, match="refused"):
        await Poster().send("http://127.0.0.1:1/")


@pytest.mark.parametrize(
    "url", ["", "example.org", "ftp://example.org/", "file:///etc/passwd", "http://", "javascript:x"]
)
def test_only_web_servers_can_be_called(url: str) -> None:
    with pytest.raises(ValueError, match="no address of a web server"):
        check_url(url)


async def test_oldest_changes_are_dropped_when_too_many_wait(log: Log) -> None:
    told: list[int] = []
    gate = asyncio.Event()

    async def tell(one: Change) -> str:
        await gate.wait()
        told.append(one.number)
        return ""

    teller = Teller("test", tell, log)
    running = asyncio.create_task(teller.run())
    teller.add(change(0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for number in range(1, CHANGES_WAITING_MAX + 2):
        teller.add(change(number))
    gate.set()
    await until(lambda: len(told) > CHANGES_WAITING_MAX, seconds_max=5, what="all have been told")
    running.cancel()

    assert told == [0, *range(2, CHANGES_WAITING_MAX + 2)]
    assert (teller.told, teller.failed, teller.dropped) == (CHANGES_WAITING_MAX + 1, 0, 1)


async def test_change_that_cannot_be_told_is_logged(log: Log) -> None:
    async def tell(_: Change) -> str:
        return "nobody there"

    teller = Teller("test", tell, log)
    running = asyncio.create_task(teller.run())
    teller.add(change(5))
    await until(lambda: bool(log.lines), seconds_max=5, what="it is logged")
    running.cancel()

    assert log.lines == [{"event": "not_told", "way": "test", "number": 5, "level": "CRITICAL", "why": "nobody there"}]


async def test_dead_man_hears_only_while_all_is_well(hearer: Hearer, log: Log) -> None:
    well = [True]
    asked: list[float] = []

    def is_well() -> bool:
        asked.append(time.monotonic())
        return well[0]

    dead_man = DeadMan(hearer.address + PING, Poster(), log)
    running = asyncio.create_task(dead_man.run(is_well, 0.02))
    await until(lambda: dead_man.pings > 1, seconds_max=10, what="it pings")
    well[0] = False
    # A ping may be on its way; from the next question on there is none.
    asked_before = len(asked) + 1
    await until(lambda: len(asked) >= asked_before, seconds_max=10, what="the ping on its way has ended")
    silent_from = len(hearer.pings)
    await until(lambda: len(asked) >= asked_before + 10, seconds_max=10, what="it was asked again and again")
    assert len(hearer.pings) == silent_from
    hearer.answers.append(503)
    well[0] = True
    await until(lambda: dead_man.pings > silent_from + 1, seconds_max=10, what="it pings again")
    running.cancel()

    assert dead_man.failed == 1
    assert [line["event"] for line in log.lines] == ["pings_fail", "pings_go_on"]
