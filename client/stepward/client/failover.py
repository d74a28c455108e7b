"""What is repeated after a failure, when, and at which address. Pure: time and chance are arguments.

The one rule: a call is repeated only when repeating it is safe. `may_repeat` is that rule; everything else decides how
long to wait and whom to ask.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from stepward.client import errors
from stepward.client.errors import SAID, START_ONE, StepwardError

DEFAULT_PORT = 7654
DEFAULT_ADDRESSES = f"localhost:{DEFAULT_PORT}"

# What to do when the only node that was named is gone.
NAME_MORE = "of a cluster of several nodes name all of them, as in a:7654,b:7654,c:7654"

# How many times one call may go to the wire. The deadlines end a call long before; this ends one whose clock stands.
ATTEMPTS_MAX = 10_000
# Addresses of which an error says what each has said. A cluster has fewer nodes.
TOLD_MAX = 8


class Repeat(Enum):
    """How a call may be repeated."""

    READ = "changes nothing"
    KEYED = "a submission with an idempotency key: the same key is the same job"
    IDEMPOTENT = "twice is the same as once"
    UNSAFE = "twice is not the same as once"


# Refused before anything was proposed, and it may pass: safe for every call. DISK_FULL is not here: no disk becomes
# empty within the seconds of a call, and the refusal is worth more than the wait.
NOTHING_HAPPENED = (errors.NotLeader, errors.NoLeader, errors.NoCluster, errors.NodeDraining, errors.Overloaded)

# Nobody can tell whether it was carried out.
MAY_HAVE_HAPPENED = (errors.CommitUnknown, errors.Unreachable)


def may_repeat(repeat: Repeat, error: StepwardError) -> bool:
    """Whether the same request may be sent again after this error."""
    if isinstance(error, NOTHING_HAPPENED):
        return True
    return isinstance(error, MAY_HAVE_HAPPENED) and repeat is not Repeat.UNSAFE


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to try. Seconds throughout."""

    timeout_s: float = 10.0
    """From the start of a call to its answer; while a call waits for a job, from the loss of contact to giving up."""
    first_contact_s: float | None = None
    """The same while no address has ever answered this client. None: as `timeout_s`. A command line says sooner that
    there is no server; a service that starts together with its cluster wants to wait."""
    attempt_s: float = 3.0
    """When other addresses could be asked, an answer is waited for this long before they are."""
    backoff_initial_s: float = 0.05
    backoff_factor: float = 2.0
    backoff_max_s: float = 1.0
    wait_chunk_s: float = 60.0
    """A wait for a job's end is asked for again after this long: no node holds a dead caller's wait for ever."""
    wait_spin_s: float = 1.0
    """A wait that ends sooner than this, and sooner than it was asked for, is followed by a backoff."""

    def __post_init__(self) -> None:
        if self.timeout_s <= 0:
            raise ValueError(f"timeout_s is {self.timeout_s}; it must be above 0")
        if self.first_contact_s is not None and self.first_contact_s <= 0:
            raise ValueError(f"first_contact_s is {self.first_contact_s}; it must be above 0, or None")


def backoff_s(patience: Patience, round_number: int, rng: random.Random) -> float:
    """How long to wait before the next round over the addresses, the first round being 0: full jitter."""
    # The exponent is bounded because floats are.
    widest = patience.backoff_initial_s * patience.backoff_factor ** min(round_number, 64)
    return rng.uniform(0, min(widest, patience.backoff_max_s))


def parse_addresses(addresses: str | Iterable[str]) -> tuple[str, ...]:
    """The addresses of "host:port,host:port" or of several such texts; the port may be left out.

    Raises:
        ValueError: There is none, or one is not an address.
    """
    texts = [addresses] if isinstance(addresses, str) else [*addresses]
    parsed = [_address(part.strip()) for text in texts for part in text.split(",") if part.strip()]
    if not parsed:
        given = ",".join(texts)
        raise ValueError(f"no address in {given!r}; give one such as {DEFAULT_ADDRESSES}")
    return tuple(dict.fromkeys(parsed))


def _address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if text.startswith("[") and text.endswith("]"):
        host, colon, port = text, ":", str(DEFAULT_PORT)
    elif not colon:
        host, port = text, str(DEFAULT_PORT)
    if not host or "/" in host or (":" in host and not host.startswith("[")):
        raise ValueError(f"{text!r} is not an address; give host:port, such as {DEFAULT_ADDRESSES} or [::1]:7654")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ValueError(f"the port of {text!r} is {port!r}; it must be between 1 and 65535")
    return f"{host}:{port}"


class Addresses:
    """The addresses of a client, shared by all its calls: which to ask first.

    Threads may share it: it holds two values, each replaced as a whole, and either order of two replacements is good.
    """

    def __init__(self, addresses: str | Iterable[str]) -> None:
        self.all = parse_addresses(addresses)
        self.preferred = self.all[0]
        """The one that answered last."""
        self.ever_answered = False

    @property
    def is_default(self) -> bool:
        """Whether nobody has said where the nodes are."""
        return self.all == (DEFAULT_ADDRESSES,)

    def answered(self, address: str) -> None:
        self.ever_answered = True
        # A hint may name an address that only the nodes can reach from everywhere: used once, never kept.
        if address in self.all:
            self.preferred = address

    def after(self, address: str) -> str:
        """The next one in turn."""
        if address not in self.all:
            return self.preferred
        return self.all[(self.all.index(address) + 1) % len(self.all)]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a call."""

    address: str
    timeout_s: float | None
    """None: a stream, which the keepalive watches over."""
    wait_s: float | None
    """How long the server may wait for the job's end. None: it is no such call."""


class Attempts:
    """The tries of one call: `begin`, then `failed` or `answered`, and again.

    A call that `waits` has no end of its own but `ends_at_s`; it gives up when contact is lost for `timeout_s`.
    """

    def __init__(
        self,
        repeat: Repeat,
        *,
        addresses: Addresses,
        patience: Patience,
        rng: random.Random,
        now_s: float,
        waits: bool = False,
        ends_at_s: float | None = None,
    ) -> None:
        self._repeat = repeat
        self._addresses = addresses
        self._patience = patience
        self._rng = rng
        self._waits = waits
        self._ends_at_s = ends_at_s
        self._started_at_s = now_s
        self._gives_up_at_s = None if waits else now_s + patience.timeout_s
        self._begun_at_s = now_s
        self._address = addresses.preferred
        self._failed_since_wait: set[str] = set()
        self._hints_followed: set[str] = set()
        self._rounds = 0
        self._tried = 0
        # What came of the last try at each address.
        self._said: dict[str, str] = {}

    def begin(self, now_s: float) -> Attempt:
        """What to try now."""
        self._begun_at_s = now_s
        self._tried += 1
        if self._waits:
            wait_s = self._patience.wait_chunk_s
            if self._ends_at_s is not None:
                wait_s = max(0.0, min(wait_s, self._ends_at_s - now_s))
            return Attempt(self._address, wait_s + self._patience.timeout_s, wait_s)
        assert self._gives_up_at_s is not None
        # A server that was asked just before the end still gets a moment to say why not.
        left_s = max(0.001, self._gives_up_at_s - now_s)
        alone = len(self._addresses.all) == 1 or self._repeat is Repeat.UNSAFE
        return Attempt(self._address, left_s if alone else min(left_s, self._patience.attempt_s), None)

    def answered(self) -> None:
        """The server has answered, or sent something of a stream."""
        self._addresses.answered(self._address)
        self._failed_since_wait.clear()
        self._rounds = 0
        if self._waits:
            self._gives_up_at_s = None

    def failed(self, error: StepwardError, now_s: float) -> float:
        """The attempt failed: how long to wait until the next `begin`.

        Raises:
            StepwardError: It is over. The same error, with what was tried where that helps.
        """
        if not isinstance(error, errors.Unreachable):
            self._addresses.answered(self._address)
        if self._waits and isinstance(error, errors.WaitTimedOut):
            return self._waited(error, now_s)
        if not may_repeat(self._repeat, error):
            raise error from None
        self._note_loss_of_contact(now_s)
        self._said[self._address] = error.metadata.get(SAID, error.message)
        wait_s = self._next(error)
        if self._tried >= ATTEMPTS_MAX or now_s + wait_s >= self._last_start_s(error):
            raise self._given_up(error, now_s - self._started_at_s) from None
        return wait_s

    def _waited(self, error: StepwardError, now_s: float) -> float:
        """The server's wait is over; perhaps not ours."""
        if self._ends_at_s is not None and now_s >= self._ends_at_s:
            raise error from None
        self._gives_up_at_s = None
        if now_s - self._begun_at_s >= self._patience.wait_spin_s:
            self._rounds = 0
            return 0.0
        self._rounds += 1
        return backoff_s(self._patience, self._rounds, self._rng)

    def _note_loss_of_contact(self, now_s: float) -> None:
        """An attempt that lasted long was in contact: only its end begins the time in which we may still try."""
        if not self._waits:
            return
        if self._gives_up_at_s is None or now_s - self._begun_at_s > self._patience.timeout_s:
            self._gives_up_at_s = now_s + self._patience.timeout_s

    def _next(self, error: StepwardError) -> float:
        """Choose the next address; how long to wait until it is asked."""
        self._failed_since_wait.add(self._address)
        hint = error.metadata.get("leader_address", "")
        if isinstance(error, NOTHING_HAPPENED) and hint and hint not in self._hints_followed:
            # Once a call: of two nodes that point at each other neither leads.
            self._hints_followed.add(hint)
            self._address = hint
            return 0.0
        if isinstance(error, errors.Overloaded):
            return self._overloaded_s(error)
        self._address = self._addresses.after(self._address)
        # Another node may know better at once, except where the trouble is the cluster's and not the node's. One that
        # knows no leader may be cut off from the others, who have one.
        elsewhere = isinstance(error, errors.Unreachable | errors.NodeDraining | errors.NotLeader | errors.NoLeader)
        if elsewhere and self._address not in self._failed_since_wait:
            return 0.0
        return self._backoff_s()

    def _overloaded_s(self, error: StepwardError) -> float:
        """At least what the server asked for; the jitter on top keeps those whom it sent away from coming together."""
        asked_s = error.retry_delay_s or 0.0
        return asked_s + max(self._backoff_s(), self._rng.uniform(0, asked_s / 2))

    def _backoff_s(self) -> float:
        wait_s = backoff_s(self._patience, self._rounds, self._rng)
        self._rounds += 1
        self._failed_since_wait.clear()
        return wait_s

    def _last_start_s(self, error: StepwardError) -> float:
        """When no further attempt may begin."""
        ends = [end for end in (self._gives_up_at_s, self._ends_at_s) if end is not None]
        first_contact_s = self._patience.first_contact_s
        no_answer = isinstance(error, errors.Unreachable) and not self._addresses.ever_answered
        if no_answer and first_contact_s is not None:
            ends.append(self._started_at_s + first_contact_s)
        return min(ends)

    def _given_up(self, error: StepwardError, took_s: float) -> StepwardError:
        """The last error of several, which says what was tried."""
        times = "once" if self._tried == 1 else f"{self._tried} times"
        tries = f"tried {times} in {took_s:.1f} s"
        message = f"{error.message} ({tries})"
        if isinstance(error, errors.Unreachable):
            addresses = list(dict.fromkeys((*self._addresses.all, *self._said)))
            told = [f"{address} ({self._said.get(address, 'not asked')})" for address in addresses[:TOLD_MAX]]
            more = f" and {len(addresses) - TOLD_MAX} more" if len(addresses) > TOLD_MAX else ""
            message = f"no stepward server answers at {', '.join(told)}{more}; {tries}"
            if isinstance(error, errors.NoAnswerInTime):
                message = f"{message}; look at it with: stepward cluster status"
            elif self._addresses.is_default:
                # Of other nodes nobody knows that they are none which this person would start.
                message = f"{message}; {START_ONE}"
            elif self._addresses.ever_answered and len(self._addresses.all) == 1:
                # The one that was given is lost, and nothing but an address was missing to go on elsewhere.
                message = f"{message}; it answered before: {NAME_MORE}"
        return type(error)(
            message,
            metadata=error.metadata,
            violations=error.violations,
            retry_delay_s=error.retry_delay_s,
            address=error.address,
        )
