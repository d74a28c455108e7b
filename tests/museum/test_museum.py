"""Planted faults, each of which a named test must see: what is not seen here would not be seen when it happens."""

from __future__ import annotations

import functools
import time

import pytest

from tests.core.world import RuleRaisedError
from tests.museum import detector
from tests.museum.detector import Run
from tests.museum.exhibit import Exhibit, rule
from tests.museum.exhibits import EXHIBITS
from tests.museum.planting import edited, planted

# In which a fault must be seen. Few need a second; the rest is for machines that have other things to do.
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

    begun_s = time.monotonic()
    with planted(exhibit.patch):
        faulty = detector.run(exhibit.detector)
    took_s = time.monotonic() - begun_s

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
