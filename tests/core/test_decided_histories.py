"""Random histories in which people decide about incidents, open ones and old ones, by every verb, whatever goes on."""

from __future__ import annotations

from collections import Counter

import pytest
from typing_extensions import override

from stepward.server.core import incidents, keys, ledger_rows
from stepward.server.core.commands import IncidentResolved, ResolveIncident, Sweep
from stepward.server.core.parts import By, Remedy, Resolution, Trouble
from stepward.server.core.rejections import Reason, Rejection
from stepward.server.core.rows import JOB_STATES_FINAL, NO_OUTPUT
from tests.core.test_histories import History

# What a decision may be refused for, whatever the state of things; the reasons of the verbs underneath.
REFUSALS = {
    Reason.INCIDENT_NOT_FOUND,
    Reason.INCIDENT_STATE,
    # Of a job that is being terminated.
    Reason.JOB_ENDED,
    Reason.JOB_STATE,
    Reason.STEP_STATE,
}
# What a person can come to.
RESOLUTIONS = (Resolution.RETRY, Resolution.SKIP, Resolution.COMPENSATE, Resolution.FAIL)


class Decided(History):
    """One random history with people who decide. At its end nothing waits for anybody."""

    @override
    def _operate(self) -> None:
        if self.rng.random() < 0.5:
            super()._operate()
            return
        newest = incidents.counts(self.world.reader).newest
        self._decide(self.rng.randint(0, newest + 1), self.rng.choice(list(Resolution)))

    def _decide(self, number: int, resolution: Resolution) -> None:
        before = incidents.find(self.world.reader, number)
        undone = resolution is Resolution.SKIP and self.rng.random() < 0.3
        answer = self.world.one(ResolveIncident(number, resolution, NO_OUTPUT, undone, "because", "ann"))
        if isinstance(answer, Rejection):
            assert answer.reason in REFUSALS, (self.seed, answer)
            self.coverage[answer.reason.name] += 1
            return
        assert isinstance(answer, IncidentResolved)
        assert before is not None
        assert answer.already is bool(before.resolved_wall_ms), (self.seed, number)
        self.coverage["already" if answer.already else resolution.name] += 1

    @override
    def _finish(self) -> None:
        super()._finish()
        while opened := [keys.parse_number(key) for key in self.world.reader.scan(keys.INCIDENT_OPEN)]:
            self._decide(opened[0], Resolution.FAIL)
            # A job of many slices is ended over several sweeps.
            self.world.one(Sweep(100))
            self._check()
        for _ in self.body.steps:
            self.world.one(Sweep(100))
        self._check()
        for job_id in self._kept():
            assert self.world.progress(job_id).state in JOB_STATES_FINAL, (self.seed, job_id)
        self._check_ledger()

    def _check_ledger(self) -> None:
        """Serials have no gaps; what people resolved stands there, once, and nobody else's decisions are theirs."""
        entries = [self.world.reader.get(key) for key in self.world.reader.scan(keys.LEDGER)]
        told = [entry for entry in entries if isinstance(entry, ledger_rows.LedgerEntry)]
        assert [entry.serial for entry in told] == list(range(1, len(told) + 1)), self.seed
        self._check_histories()
        rows = [self.world.reader.get(key) for key in self.world.reader.scan(keys.INCIDENT)]
        kept = [row for row in rows if isinstance(row, ledger_rows.Incident)]
        by_people = [row for row in kept if row.by is By.PERSON]
        # That a late job may go on is no remedy; its incident and its history tell of that.
        went_on = [row for row in by_people if row.how is Remedy.NONE]
        assert {(row.ordinal, row.trouble) for row in went_on} <= {(-1, Trouble.JOB_DEADLINE)}, self.seed
        theirs = Counter((row.job_id, row.ordinal, row.resolved_wall_ms) for row in by_people if row not in went_on)
        written = Counter((one.job_id, one.ordinal, one.wall_ms) for one in told if one.by is By.PERSON)
        assert theirs <= written, self.seed
        self.coverage["KEPT"] += theirs.total()

    def _check_histories(self) -> None:
        """The history of a job tells in which batches its remedies stand: a list of them is read by it."""
        for key in self.world.reader.scan(keys.LEDGER):
            entry = self.world.reader.get(key)
            assert isinstance(entry, ledger_rows.LedgerEntry)
            if self.world.reader.get(keys.job(entry.job_id)) is None:
                continue
            sequence, _ = keys.parse_ledger(key)
            assert self.world.reader.get(keys.history(entry.job_id, sequence)) is not None, (self.seed, entry)
            self.coverage[entry.by.name] += 1


def run_seeds(first: int, count: int, only: int | None) -> Counter[str]:
    """Run many histories and add up what people did."""
    total: Counter[str] = Counter()
    for seed in [only] if only is not None else range(first, first + count):
        history = Decided(seed)
        history.run()
        total += history.coverage
    return total


def test_random_decisions(only_seed: int | None) -> None:
    """Every promise holds, each thing that can be decided was, and each kind of refusal was met."""
    met = run_seeds(0, 10, only_seed)

    if only_seed is None:
        done = [*(one.name for one in RESOLUTIONS), *(one.name for one in By)]
        wanted = [*done, "already", "INCIDENT_STATE", "INCIDENT_NOT_FOUND", "KEPT"]
        assert [name for name in wanted if not met[name]] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_random_decisions(only_seed: int | None) -> None:
    """The same, for longer."""
    run_seeds(1_000, 200, only_seed)
