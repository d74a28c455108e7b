"""The users of the load with locust, but for agents and for who looks at the nodes.

Each has a client of its own, and so connections of its own. What they submit and what came of it stands in the ledger.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from locust import User, task
from typing_extensions import override

from loadtest.mix_jobs import ENDS, NOBODYS, drawn
from loadtest.shapes import INPUT
from loadtest.submissions import Ledger
from stepward.client import Client, JobState, StepwardError
from stepward.client.failover import Patience
from stepward.client.payloads import Payload

# A job that has not ended by then has failed.
JOB_S_MAX = 60.0
# A failover takes a second or two; nobody waits for who was never there.
PATIENCE = Patience(timeout_s=30.0, first_contact_s=2.0)
POLL_EVERY_S = 0.1
LISTED = 50


class CallFailedError(Exception):
    """A call failed; its message is the server's reason, or the client's name for it: the same for all of a kind."""


class JobNotEndedError(Exception):
    """A job ended in another state than it must, or not in time; its message is the state."""


def stable(error: StepwardError) -> CallFailedError:
    """The failure without addresses and ids, so that failures of one kind are counted together."""
    return CallFailedError(error.reason or type(error).__name__)


@contextmanager
def event(user: User, name: str) -> Iterator[None]:
    """One entry of locust's statistics. A failure is counted, and ends no user."""
    began = time.perf_counter()
    failure: Exception | None = None
    try:
        yield
    except StepwardError as error:
        failure = stable(error)
    except (CallFailedError, JobNotEndedError) as error:
        failure = error
    fire(user, name, (time.perf_counter() - began) * 1000, failure)


def fire(user: User, name: str, took_ms: float, failure: Exception | None = None) -> None:
    """Tell locust."""
    user.environment.events.request.fire(
        request_type="stepward",
        name=name,
        response_time=took_ms,
        response_length=0,
        exception=failure,
        context={},
    )


class Caller(User):
    """Somebody with a client."""

    abstract = True
    ledger: ClassVar[Ledger] = Ledger()

    @override
    def on_start(self) -> None:
        self.cluster = Client(self.host or "", patience=PATIENCE)

    @override
    def on_stop(self) -> None:
        self.cluster.close()

    @contextmanager
    def submission(self, definition: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """A key, and what is submitted with it; the job counts as open until the end of the block."""
        key = f"mix-{secrets.token_hex(8)}"
        self.ledger.begun(key, definition=definition, wanted=ENDS[definition])
        try:
            yield key, {"input": Payload(INPUT.data, INPUT.encoding), "idempotency_key": key}
        finally:
            self.ledger.gave_up(key)

    def ended(self, key: str, definition: str, job_id: str, state: JobState) -> None:
        """A job was told to have ended.

        Raises:
            JobNotEndedError: As it must not.
        """
        self.ledger.ended(key, job_id, state)
        if state is not ENDS[definition]:
            raise JobNotEndedError(str(state))


class Submitter(Caller):
    """Submits a job and waits for its end, in one call."""

    @task
    def run_job(self) -> None:
        """One `Client.run`."""
        name = drawn()
        with event(self, f"run {name}"), self.submission(name) as (key, fields):
            result = self.cluster.run(name, **fields, wait_max_s=JOB_S_MAX, check=False)
            self.ended(key, name, result.job_id, result.state)


class Poller(Caller):
    """Submits a job and asks for it again and again."""

    @task
    def poll_job(self) -> None:
        """Until it has ended."""
        name = drawn()
        with event(self, f"submit and poll {name}"), self.submission(name) as (key, fields):
            submitted = self.cluster.submit(name, **fields)
            self.ledger.stored(key, submitted.job_id)
            until = time.monotonic() + JOB_S_MAX
            while not (job := self.cluster.get(submitted.job_id)).state.final:
                if time.monotonic() > until:
                    raise JobNotEndedError(str(job.state))
                time.sleep(POLL_EVERY_S)
            self.ended(key, name, job.job_id, job.state)


class Watcher(Caller):
    """Submits a job and follows it."""

    @task
    def watch_job(self) -> None:
        """Every change, to the end; none comes twice or too late."""
        name = drawn()
        with event(self, f"submit and watch {name}"), self.submission(name) as (key, fields):
            submitted = self.cluster.submit(name, **fields)
            self.ledger.stored(key, submitted.job_id)
            revision, state = 0, JobState.UNSPECIFIED
            for change in self.cluster.watch(submitted.job_id):
                if change.job.revision < revision:
                    raise JobNotEndedError("a change came after a newer one")
                revision, state = change.job.revision, change.job.state
            self.ended(key, name, submitted.job_id, state)


class Operator(Caller):
    """Looks at what goes on, and cancels what does not."""

    @override
    def on_start(self) -> None:
        super().on_start()
        self._turns = itertools.cycle((self._cancel, self._look, self._look, self._look))

    @task
    def work(self) -> None:
        """In turn and not by chance, so that a short run has all of it."""
        next(self._turns)()

    def _look(self) -> None:
        """Lists, counts, and agents."""
        with event(self, "list jobs"):
            for _ in self.cluster.list(limit=LISTED):
                pass
        with event(self, "count jobs"):
            self.cluster.count()
        with event(self, "list agents"):
            for _ in self.cluster.agents():
                pass

    def _cancel(self) -> None:
        """A job that nobody takes is explained, and cancelled."""
        with event(self, "explain and cancel"), self.submission(NOBODYS.name) as (key, fields):
            submitted = self.cluster.submit(NOBODYS.name, **fields)
            self.ledger.stored(key, submitted.job_id)
            self.cluster.explain(submitted.job_id)
            self.cluster.cancel(submitted.job_id, reason="nobody takes it", actor="loadtest")
            result = self.cluster.wait(submitted.job_id, wait_max_s=JOB_S_MAX, check=False)
            self.ended(key, NOBODYS.name, result.job_id, result.state)
