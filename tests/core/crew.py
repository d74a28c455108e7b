"""An agent with many slots that does everything well, and the count of what its batches cost."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from stepward.server.core import keys
from stepward.server.core.commands import AttemptRef, AttemptReport, RenewSession, ReportAttempts, Succeeded, Sweep
from stepward.server.core.draft import Draft
from stepward.server.core.rows import JOB_STATES_FINAL, Payload
from tests.core.world import actions_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest

    from stepward.server.core.commands import AttemptEvent
    from stepward.server.core.rows import DefinitionBody
    from tests.core.world import World

DONE = Succeeded(Payload(b'{"id":1}'))


class Crew:
    """One session. `changes_most` is the largest batch that it has seen, in row changes."""

    def __init__(self, world: World, body: DefinitionBody, *, slots: int = 1_000) -> None:
        self.world = world
        self.session_id = "crew"
        self.changes_most = 0
        self.batches = 0
        self.gives: AttemptEvent = DONE
        self._ids = [spec.id for spec in body.steps]
        world.open(self.session_id, actions_of(body), slots=slots)

    def held(self) -> list[AttemptRef]:
        """What it has been offered and has not reported."""
        found = [keys.parse_assignment(key) for key in self.world.reader.scan(keys.assignments(self.session_id))]
        return [AttemptRef(job_id, self._ids[ordinal], token) for _, token, job_id, ordinal in found]

    def report(self, *refs: AttemptRef) -> None:
        """Report success of some, in one batch."""
        reports = tuple(AttemptReport(ref, self.gives) for ref in refs)
        self.world.one(ReportAttempts(self.session_id, 1, reports))
        self._note()

    def sweep(self) -> None:
        """One look of the supervisor, a millisecond later, as it comes back when it has left something."""
        self.world.now_ms += 1
        self.world.do(RenewSession(self.session_id, 1, 0), Sweep(self.world.limits.sweep_subjects_max))
        self._note()

    def work(self, job_id: str, *, at_once: int = 100, until: Callable[[], bool] | None = None) -> None:
        """Do what is offered, so many in each batch, until the job has ended or the condition holds."""
        for _ in range(50_000):
            if until() if until is not None else self.world.progress(job_id).state in JOB_STATES_FINAL:
                return
            held = self.held()[:at_once]
            if held:
                self.report(*held)
            else:
                self.sweep()
        raise AssertionError(self.world.progress(job_id))

    def _note(self) -> None:
        self.batches += 1
        self.changes_most = max(self.changes_most, len(self.world.changes))


class Cost:
    """Rows read and written while they were counted, overlay and committed rows alike."""

    gets = 0
    puts = 0


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cost]:
    """Count what the rules read and write."""
    cost, get, change = Cost(), Draft.get, Draft._change

    def counting_get(draft: Draft, key: bytes) -> object:
        cost.gets += 1
        return get(draft, key)

    def counting_change(draft: Draft, key: bytes, row: object) -> None:
        cost.puts += 1
        change(draft, key, row)  # type: ignore[arg-type]  # passed on as it came

    with monkeypatch.context() as patched:
        patched.setattr(Draft, "get", counting_get)
        patched.setattr(Draft, "_change", counting_change)
        yield cost
