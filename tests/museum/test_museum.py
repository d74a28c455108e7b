"""Planted faults, each of which a named test must see: what is not seen here would not be seen when it happens."""

from __future__ import annotations

import functools
import time

import pytest

from stepward.server.core import policies
from tests.core.world import RuleRaisedError
from tests.museum import detector
from tests.museum.detector import Run
from tests.museum.exhibit import Exhibit, rule
from tests.museum.exhibits import EXHIBITS
from tests.museum.page import PAGE, page
from tests.museum.planting import Patch, PlantingError, edited, planted

# CPU time in which a fault must be seen. Few need a second of it.
SEEN_WITHIN_S = 10
EXHIBITS_LEAST = 24
POLICY = rule("policies:retry_delay_ms", "rng.randint(0,", "rng.randint(1,")


@functools.cache
def without_a_fault(node_id: str) -> Run:
    """How a detector goes when nothing is wrong."""
    return detector.run(node_id)


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.fault.replace(" ", "-"))
def test_fault_is_seen(exhibit: Exhibit) -> None:
    """With the fault its detector is red, soon and for the right reason; without it the same test is green."""
    sound = without_a_fault(exhibit.detector)
    assert sound.ran > 0, f"{exhibit.detector} is no test"
    assert sound.error is None, "it is red without the fault"

    begun_s = time.process_time()
    with planted(exhibit.patch):
        faulty = detector.run(exhibit.detector)
    took_s = time.process_time() - begun_s

    assert faulty.error is not None, f"{exhibit.detector} does not see that {exhibit.fault}"
    assert is_verdict(faulty.error), f"it is red because it could not run: {faulty.error!r}"
    assert exhibit.says in told(faulty.error), "it is red for another reason"
    assert took_s < SEEN_WITHIN_S


def is_verdict(error: BaseException) -> bool:
    """Whether a test or a rule has found something wrong, rather than stumbled."""
    if isinstance(error, RuleRaisedError):
        return isinstance(error.__cause__, AssertionError)
    return isinstance(error, AssertionError | pytest.fail.Exception)


def told(error: BaseException) -> str:
    """Everything that an error says."""
    return f"{error}\n{error.__cause__}"


def test_exhibits_are_different() -> None:
    """Each has a name of its own, and plants something of its own."""
    assert len(EXHIBITS) >= EXHIBITS_LEAST
    assert len({exhibit.fault for exhibit in EXHIBITS}) == len(EXHIBITS)
    assert len({edited(exhibit.patch) for exhibit in EXHIBITS}) == len(EXHIBITS)


def test_page_tells_of_every_exhibit() -> None:
    """`make museum` writes it anew."""
    assert PAGE.read_text() == page()


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        (rule("policies:no_such_rule", "a", "b"), "there is no 'no_such_rule'"),
        (rule("policies:retry_delay_ms", "no such words", "b"), "stands there 0 times"),
        (rule("policies:retry_delay_ms", "retry", "b"), "and must stand there once"),
        (rule("limits:Limits", "a", "b"), "is no function"),
    ],
)
def test_what_cannot_be_planted_is_noticed(patch: Patch, message: str) -> None:
    """A fault that is not there is seen by nobody, and must not pass for one that a test has missed."""
    with pytest.raises(PlantingError, match=message), planted(patch):
        pass


def test_a_fault_is_taken_away_again() -> None:
    """Also for those who had imported the function before, and when its detector raises."""
    function = policies.retry_delay_ms
    sound = function.__code__
    planted_code = []

    def detector_that_raises() -> None:
        with planted(POLICY):
            planted_code.append(function.__code__)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        detector_that_raises()

    assert planted_code != [sound]
    assert function.__code__ is sound


def test_a_red_that_is_no_verdict_does_not_count() -> None:
    """A patch with a misspelt name turns everything red."""
    broken = rule("policies:retry_delay_ms", "rng.randint(0,", "no_such_name(0,")
    with planted(broken):
        seen = detector.run("tests/core/test_policies.py::test_wait_is_drawn_from_the_whole_range")

    assert isinstance(seen.error, NameError)
    assert not is_verdict(seen.error)
    assert is_verdict(AssertionError())
    assert not is_verdict(RuleRaisedError())
    assert detector.run("tests/core/test_policies.py::no_such_test") == Run(0, None)
