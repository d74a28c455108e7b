"""Tells others of a change: a command that is run, a webhook that is called; and an address, that all is well.

Each has a queue and a worker of its own, so that one that hangs delays no other. What is told late is told as it was;
of too many changes the oldest are dropped, since the newest say how things are.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import uuid4

from stepward.client.watchdog.posting import NotTaken, Poster, signature

if TYPE_CHECKING:
    from stepward.client.watchdog.verdicts import Change, Verdict

CHANGES_WAITING_MAX: Final = 16
COMMAND_S_MAX: Final = 30.0
OUTPUT_BYTES_MAX: Final = 4_096
# What is passed on of the reasons: enough for a person, and far from what an environment can hold.
TEXT_CHARACTERS_MAX: Final = 4_096
REASONS_MAX: Final = 32
WEBHOOK_TRIES_MAX: Final = 3
WEBHOOK_WAIT_S: Final = 1.0

SIGNATURE_HEADER: Final = "Stepward-Signature"
DELIVERY_HEADER: Final = "Stepward-Delivery"

# An event and its fields.
Log: TypeAlias = Callable[..., None]


def form_of(verdict: Verdict) -> dict[str, Any]:
    """A verdict as JSON has it."""
    return {
        "level": verdict.level.name,
        "text": verdict.text[:TEXT_CHARACTERS_MAX],
        "reasons": [
            {"kind": str(reason.kind), "level": reason.level.name, "node": reason.node, "text": reason.text}
            for reason in verdict.reasons[:REASONS_MAX]
        ],
    }


def body_of(change: Change) -> dict[str, Any]:
    """A change as JSON has it. Its level is the one that is told: it may lag behind what is better already."""
    return {
        "event": "watchdog.changed",
        "number": change.number,
        "at": datetime.fromtimestamp(change.at_wall_s, UTC).isoformat(timespec="milliseconds"),
        "cluster_id": change.cluster_id,
        "before": change.before.name,
        **form_of(change.verdict),
        "level": change.level.name,
    }


def environment_of(change: Change) -> dict[str, str]:
    """A change as a command has it."""
    body = body_of(change)
    names = ("at", "cluster_id", "before", "level", "text")
    found = {f"STEPWARD_WATCHDOG_{name.upper()}": body[name] for name in names}
    kinds = dict.fromkeys(reason["kind"] for reason in body["reasons"])
    return {**found, "STEPWARD_WATCHDOG_KINDS": " ".join(kinds)}


class Teller:
    """One way of telling: a queue, and the worker that empties it."""

    def __init__(self, name: str, tell: Callable[[Change], Awaitable[str]], log: Log) -> None:
        """`tell` is bounded by itself, and returns why it did not work; empty: it did."""
        self.name = name
        self.told = 0
        self.failed = 0
        self.dropped = 0
        self._tell = tell
        self._log = log
        self._waiting: deque[Change] = deque()
        self._more = asyncio.Event()

    def add(self, change: Change) -> None:
        """Tell of this when those before it have been told."""
        if len(self._waiting) == CHANGES_WAITING_MAX:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append(change)
        self._more.set()

    async def run(self) -> None:
        """Tell, for ever."""
        while True:
            await self._more.wait()
            self._more.clear()
            while self._waiting:
                change = self._waiting.popleft()
                why = await self._tell(change)
                if why:
                    self.failed += 1
                    self._log("not_told", way=self.name, number=change.number, level=change.level.name, why=why)
                else:
                    self.told += 1


class Command:
    """Runs a command at each change."""

    def __init__(self, words: tuple[str, ...], environment: Mapping[str, str], log: Log) -> None:
        self._words = words
        self._environment = dict(environment)
        self._log = log

    async def tell(self, change: Change) -> str:
        """Run it to its end, or end it and all that it started when its time is over."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env={**self._environment, **environment_of(change)},
                start_new_session=True,
            )
        except OSError as error:
            return f"{self._words[0]} cannot be run: {error.strerror}"
        output, ended = b"", False
        try:
            async with asyncio.timeout(COMMAND_S_MAX):
                output = await _output(process)
                code = await process.wait()
            ended = True
            why = f"it ended with {code}" if code else ""
        except TimeoutError:
            why = f"it was ended after {COMMAND_S_MAX:.0f} s"
        finally:
            if not ended:
                _end(process)
        await process.wait()
        self._log("command_ended", number=change.number, why=why, output=output.decode(errors="replace"))
        return why


async def _output(process: asyncio.subprocess.Process) -> bytes:
    """The beginning of what it says; the rest is read and dropped, so that it can end."""
    assert process.stdout is not None, "it was started with a pipe"
    kept = b""
    while piece := await process.stdout.read(OUTPUT_BYTES_MAX):
        kept = (kept + piece)[:OUTPUT_BYTES_MAX]
    return kept


def _end(process: asyncio.subprocess.Process) -> None:
    """Whatever it left running has its session, and ends with it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


class Webhook:
    """Calls a web server at each change."""

    def __init__(self, url: str, secret: bytes, poster: Poster) -> None:
        """Signed unless the secret is empty."""
        self._url = url
        self._secret = secret
        self._poster = poster

    async def tell(self, change: Change) -> str:
        """Call it, some times at most."""
        body = json.dumps(body_of(change)).encode()
        delivery, why = uuid4().hex, ""
        for tried in range(WEBHOOK_TRIES_MAX):
            if tried:
                await asyncio.sleep(WEBHOOK_WAIT_S * tried)
            headers = {"Content-Type": "application/json", DELIVERY_HEADER: delivery}
            if self._secret:
                headers[SIGNATURE_HEADER] = signature(self._secret, body, int(time.time()))
            try:
                await self._poster.send(self._url, body, headers)
            except NotTaken as error:
                why = f"{error} (tried {tried + 1} times)"
            else:
                return ""
        return why


class DeadMan:
    """Calls an address while all is well, so that others notice when it falls silent."""

    def __init__(self, url: str, poster: Poster, log: Log) -> None:
        self.pings = 0
        self.failed = 0
        self.why = ""
        """Why the last ping was not taken. Empty: it was."""
        self._url = url
        self._poster = poster
        self._log = log

    async def run(self, is_well: Callable[[], bool], interval_s: float) -> None:
        """Ping an interval apart, while it is well at that moment. The next one repeats one that fails."""
        while True:
            began_s = time.monotonic()
            if is_well():
                await self._ping()
            await asyncio.sleep(max(0.0, began_s + interval_s - time.monotonic()))

    async def _ping(self) -> None:
        why = ""
        try:
            await self._poster.send(self._url)
        except NotTaken as error:
            why = str(error)
            self.failed += 1
        else:
            self.pings += 1
        if bool(why) != bool(self.why):
            self._log("pings_fail" if why else "pings_go_on", why=why)
        self.why = why
