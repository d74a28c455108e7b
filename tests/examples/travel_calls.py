"""Calls of the travel service as the tests write them: only what matters is said."""

from stepward.agents.examples.bookings import Answer, Call, Verb
from stepward.agents.examples.ledger import Entry


def book(key: str, *, token: int = 1, service: str = "cars", wish: str = "") -> Call:
    """A booking; the key is job/step/generation."""
    return _call(key, verb="book", cancels="", token=token, service=service, wish=wish)


def cancel(key: str, *, token: int = 2, service: str = "cars") -> Call:
    """The cancel of what a key has booked."""
    return _call(f"{key}/undo", verb="cancel", cancels=key, token=token, service=service, wish="")


def took_effect(call: Call, *, booking: str = "C-1001") -> Entry:
    """The record of a call that changed something."""
    return Entry(at_ms=0, call=call, answer=Answer(status=200, effect=True, booking=booking))


def changed_nothing(call: Call, *, status: int = 200, kind: str = "") -> Entry:
    """The record of a call that changed nothing."""
    return Entry(at_ms=0, call=call, answer=Answer(status=status, kind=kind))


def _call(key: str, *, verb: Verb, cancels: str, token: int, service: str, wish: str) -> Call:
    job, step, *_ = key.split("/")
    return Call(
        service=service,
        verb=verb,
        key=key,
        cancels=cancels,
        token=token,
        job=job,
        step=step,
        attempt=1,
        agent_pid=4711,
        wish=wish,
    )
