"""What stands in the museum: a fault, where in the world it happened, and the test that sees it."""

from __future__ import annotations

from typing import NamedTuple

from tests.museum.planting import Patch

RULES = "stepward.server.core"
SCENARIOS = "tests/scenarios"
TRANSCRIPTS = f"{SCENARIOS}/test_transcripts.py::test_transcript"
# Random histories against a plain model and against what stands outside; its first red seed ends it.
MODEL = "tests/museum/test_first_histories.py::test_first_histories"


class Exhibit(NamedTuple):
    """One fault, one function of ours with some words changed, and who sees it.

    `detector` is a test of this repository, by the name that pytest gives it. `says` is a part of what it must say when
    it is red, so that a test which is red for another reason does not count.
    """

    fault: str
    history: str
    patch: Patch
    detector: str
    says: str


def rule(where: str, old: str, new: str) -> Patch:
    """A patch of the core: `where` is "module:function" below `stepward.server.core`."""
    return Patch(f"{RULES}.{where}", old, new)


def transcript(name: str) -> str:
    """The transcript of a name, as a detector."""
    return f"{TRANSCRIPTS}[{name}]"
