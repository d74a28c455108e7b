"""What a handler knows about its attempt, and how it speaks with its agent.

Its flags are written by the I/O thread and read by handlers on other threads. Each is one assignment, so no lock is
needed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, MutableMapping
from typing import Any, Final

import msgspec

from stepward.agents.errors import Cancelled, LeaseLost
from stepward.agents.stops import StopReason
from stepward.v1 import agent_service_pb2 as wire

# The contract's bound of Progress.details.
PROGRESS_BYTES_MAX: Final = 4_096

# A handler may wait on threads of its own, too: all wait for the same.
_MAKING_STOP: Final = threading.Lock()

_LOG = logging.getLogger("stepward.agents.handler")


class AttemptFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the cluster said about one attempt when it offered it."""

    job_id: str
    step_id: str
    token: int
    idempotency_key: str
    attempt: int
    definition_name: str
    undo: bool
    deadline_ms: int
    """When its start-to-close time is over, on the agent's steady clock."""
    last_progress: Any = None

    @classmethod
    def of(cls, offer: wire.Offer, deadline_ms: int) -> AttemptFacts:
        attempt = offer.attempt
        return cls(
            job_id=attempt.job_id,
            step_id=attempt.step_id,
            token=attempt.token,
            idempotency_key=offer.idempotency_key,
            attempt=offer.attempt_number,
            definition_name=offer.definition_name,
            undo=offer.undo,
            deadline_ms=deadline_ms,
            last_progress=_last_progress(offer.last_progress.data),
        )


def _last_progress(data: bytes) -> Any:
    """What the attempt before said. It came from an agent, but maybe not from one of ours."""
    try:
        return msgspec.json.decode(data) if data else None
    except msgspec.DecodeError:
        return data


class AttemptLog(logging.LoggerAdapter[logging.Logger]):
    """Says with every record which attempt it is about: in its text, and as fields."""

    def process(  # type: ignore[explicit-override]  # typing.override came with Python 3.12
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """The caller's own `extra` fields stay."""
        fields = dict(self.extra or {})
        kwargs["extra"] = {**fields, **(kwargs.get("extra") or {})}
        return f"{msg} ({' '.join(f'{name}={value}' for name, value in fields.items())})", kwargs


class Context:
    """One attempt, as its handler sees it. A handler asks for it with a parameter annotated `Context`."""

    def __init__(
        self,
        facts: AttemptFacts,
        *,
        steady_ms: Callable[[], int],
        on_progress: Callable[[bytes], None],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """`loop` is where async handlers run; `on_progress` is called on the handler's thread and must not block.

        It is given details as JSON, or nothing (`b""`) for a mere sign of life.
        """
        self._facts = facts
        self._steady_ms = steady_ms
        self._on_progress = on_progress
        self._loop = loop
        self._reason: StopReason | None = None
        self._reason_seen = False
        # Made when a handler first waits: it costs more than the rest of a context, and few wait.
        self._stop: threading.Event | None = None
        self._lease_lost = False
        self._lease_waiters: set[asyncio.Event] = set()

    @property
    def job_id(self) -> str:
        return self._facts.job_id

    @property
    def step_id(self) -> str:
        return self._facts.step_id

    @property
    def token(self) -> int:
        """The fencing token: a service that remembers the highest it has seen can refuse an older attempt."""
        return self._facts.token

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this action. Pass it to the service that does the work."""
        return self._facts.idempotency_key

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._facts.attempt

    @property
    def definition_name(self) -> str:
        return self._facts.definition_name

    @property
    def undo(self) -> bool:
        """Whether this is the undo of the step."""
        return self._facts.undo

    @property
    def deadline_ms(self) -> int:
        """When the attempt's time is over, on a steady clock of this machine that also counts suspension."""
        return self._facts.deadline_ms

    @property
    def remaining_seconds(self) -> float:
        """How long until the attempt's time is over; 0 when it is. Fits as the timeout of a request."""
        return max(0, self._facts.deadline_ms - self._steady_ms()) / 1_000

    @property
    def last_progress(self) -> Any:
        """What the attempt before said last about its progress. None: nothing."""
        return self._facts.last_progress

    @property
    def log(self) -> AttemptLog:
        """A logger that says which attempt it is about."""
        return AttemptLog(_LOG, {"job_id": self.job_id, "step_id": self.step_id, "token": self.token})

    @property
    def cancelled(self) -> bool:
        """Whether the attempt is to stop. Async handlers get a CancelledError by themselves, others should look."""
        return self.cancel_reason is not None

    @property
    def cancel_reason(self) -> StopReason | None:
        """Why the attempt is to stop. None: it is not."""
        self._reason_seen = self._reason_seen or self._reason is not None
        return self._reason

    @property
    def cancel_seen(self) -> bool:
        """Whether the handler knows that it is cancelled. What it returns after that is not taken for a success."""
        return self._reason_seen

    def raise_if_cancelled(self) -> None:
        """Raise if the attempt is to stop.

        Raises:
            LeaseLost: The agent's lease has ended.
            Cancelled: Any other reason.
        """
        match self.cancel_reason:
            case None:
                return
            case StopReason.LEASE_LOST:
                raise LeaseLost("the agent's lease has ended")
            case reason:
                raise Cancelled(reason.value)

    def wait_cancelled(self, timeout_seconds: float) -> bool:
        """Sleep, in a handler on a thread, but wake at once when the attempt is to stop. Returns `cancelled`."""
        with _MAKING_STOP:
            stop = self._stop = self._stop or threading.Event()
        # It is there before the reason is looked at, and `cancel` looks for it after it has given one.
        if self._reason is None:
            stop.wait(timeout_seconds)
        return self.cancelled

    @property
    def lease_lost(self) -> bool:
        """Whether the agent's lease is over at the moment: another agent may be given the step.

        The handler of an idempotent step may go on for one more TTL, and becomes the holder again when the cluster is
        back in time. A handler that does what must not be done twice should stop here.
        """
        return self._lease_lost

    async def until_lease_lost(self) -> None:
        """Wait, in an async handler, until the lease is over."""
        waiter = asyncio.Event()
        self._lease_waiters.add(waiter)
        try:
            if not self._lease_lost:
                await waiter.wait()
        finally:
            self._lease_waiters.discard(waiter)

    def heartbeat(self, details: Any = None) -> None:
        """Say that the attempt is alive and, with details, how far it is. Never blocks: call it often.

        A step with a heartbeat timeout needs it; nobody sends one for a handler that is silent. At most one a second
        travels, or three in a heartbeat timeout, with the newest details. None keeps what was said before.

        Raises:
            ValueError: The details have more than 4096 bytes as JSON.
            TypeError: They have no JSON form.
        """
        if details is None:
            self._on_progress(b"")
        else:
            self.progress(details)

    def progress(self, details: Any) -> None:
        """Say how far the attempt is. It is a heartbeat, too.

        The next attempt finds the details in `last_progress`, should this one fail.

        Raises:
            ValueError: The details have more than 4096 bytes as JSON.
            TypeError: They have no JSON form.
        """
        encoded = msgspec.json.encode(details)
        if len(encoded) > PROGRESS_BYTES_MAX:
            raise ValueError(
                f"progress details have {len(encoded)} bytes as JSON; at most {PROGRESS_BYTES_MAX} travel: "
                "store them elsewhere and say where"
            )
        self._on_progress(encoded)

    def cancel(self, reason: StopReason) -> None:
        """Tell the handler to stop; called by the agent. The first reason stays."""
        if self._reason is None:
            self._reason = reason
        if self._stop is not None:
            self._stop.set()

    def interrupted(self) -> None:
        """Note that a CancelledError was thrown into the handler; called by the agent."""
        self._reason_seen = True

    def set_lease_lost(self, lost: bool) -> None:
        """Say whether the lease is over; called by the agent, on any thread."""
        self._lease_lost = lost
        if lost and self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake_lease_waiters)

    def _wake_lease_waiters(self) -> None:
        for waiter in self._lease_waiters:
            waiter.set()
