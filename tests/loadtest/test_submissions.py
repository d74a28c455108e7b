"""A ledger of users and agents against the rows of a cluster: what was lost, and what was there twice."""

from contextlib import closing
from pathlib import Path

import pytest

from loadtest.submissions import Ledger, Row, Told, judge, read
from stepward.client import JobState

EFFECTS = {"trip": ("reserve/1", "charge/1")}
ROW = Row("job-1", "key-1", "trip", JobState.COMPLETED)


def told(path: Path, *, ended: bool = True, runs: int = 1) -> Told:
    """A job that was submitted, acknowledged, done, and seen to its end."""
    with closing(Ledger(path)) as ledger:
        ledger.begun("key-1", definition="trip", wanted=JobState.COMPLETED)
        ledger.stored("key-1", "job-1")
        for effect in EFFECTS["trip"]:
            for _ in range(runs):
                ledger.ran(f"job-1/{effect}")
        if ended:
            ledger.ended("key-1", "job-1", JobState.COMPLETED)
    return read(path.read_bytes().splitlines())


def test_all_is_well(tmp_path: Path) -> None:
    """One job, done once."""
    verdict = judge(told(tmp_path / "ledger"), [ROW], effects=EFFECTS)

    assert verdict.sound
    assert verdict.text == "1 jobs, 2 effects, 0 lost, 0 duplicated"


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([], "is not stored"),
        ([ROW._replace(state=JobState.RUNNING)], "told to have ended COMPLETED, and is RUNNING"),
        ([ROW, Row("job-2", "key-2", "trip", JobState.COMPLETED)], "nobody has submitted"),
    ],
)
def test_lost(tmp_path: Path, rows: list[Row], why: str) -> None:
    """Gone, not ended as its caller was told, or of nobody."""
    verdict = judge(told(tmp_path / "ledger"), rows, effects=EFFECTS)

    assert not verdict.sound
    assert why in verdict.text


def test_job_without_its_effects_is_lost(tmp_path: Path) -> None:
    """The cluster says that it was done, and no agent has done it."""
    verdict = judge(told(tmp_path / "ledger", runs=0), [ROW], effects=EFFECTS)

    assert [line for line in verdict.lost if "without ['reserve/1', 'charge/1']" in line]


def test_job_that_ended_otherwise_than_it_must_is_lost(tmp_path: Path) -> None:
    """Nobody was told of its end, and it is the wrong one."""
    verdict = judge(told(tmp_path / "ledger", ended=False), [ROW._replace(state=JobState.FAILED)], effects=EFFECTS)

    assert verdict.lost == ["job-1 is FAILED, not COMPLETED"]


def test_job_that_was_acknowledged_and_not_seen_to_its_end_must_be_stored(tmp_path: Path) -> None:
    """Its caller may rely on it."""
    verdict = judge(told(tmp_path / "ledger", ended=False), [], effects=EFFECTS)

    assert len(verdict.lost) == 1


def test_duplicated_job(tmp_path: Path) -> None:
    """One key is one job."""
    verdict = judge(told(tmp_path / "ledger"), [ROW, ROW._replace(job_id="job-2")], effects=EFFECTS)

    assert verdict.duplicated == ["key-1 is stored as 2 jobs"]


def test_duplicated_answer(tmp_path: Path) -> None:
    """Two callers of one key were told of different jobs."""
    path = tmp_path / "ledger"
    told(path)
    with closing(Ledger(path)) as ledger:
        ledger.stored("key-1", "job-2")
    verdict = judge(read(path.read_bytes().splitlines()), [ROW], effects=EFFECTS)

    assert verdict.duplicated == ["key-1 was answered as ['job-1', 'job-2']"]


def test_duplicated_effect(tmp_path: Path) -> None:
    """A handler ran twice under one key."""
    verdict = judge(told(tmp_path / "ledger", runs=2), [ROW], effects=EFFECTS)

    assert verdict.duplicated == ["job-1/reserve/1 was done 2 times", "job-1/charge/1 was done 2 times"]


@pytest.mark.parametrize(("state", "lost"), [(JobState.RUNNING, 0), (JobState.CANCELLED, 0), (JobState.FAILED, 1)])
def test_job_that_waits_for_a_caller_who_has_left(tmp_path: Path, state: JobState, lost: int) -> None:
    """Nobody cancelled it, so it waits; anything else is as wrong as ever."""
    path = tmp_path / "ledger"
    with closing(Ledger(path)) as ledger:
        ledger.begun("key-1", definition="nobodys", wanted=JobState.CANCELLED)
        ledger.gave_up("key-1")
    rows = [Row("job-1", "key-1", "nobodys", state)]

    assert len(judge(read(path.read_bytes().splitlines()), rows, effects={"nobodys": ()}).lost) == lost


def test_open_submissions_are_those_that_somebody_waits_for() -> None:
    """Agents go on for so long."""
    ledger = Ledger()
    for key in ("a", "b", "c"):
        ledger.begun(key, definition="trip", wanted=JobState.COMPLETED)
    ledger.ended("a", "job-1", JobState.COMPLETED)
    ledger.gave_up("b")

    assert ledger.open == 1
