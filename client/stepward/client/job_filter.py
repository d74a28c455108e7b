"""Which jobs a list shows or a count counts: everything that is said must hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypedDict

from stepward.client.values import JobState, StepState
from stepward.v1 import common_pb2, job_service_pb2


class WantedJobs(TypedDict, total=False):
    """What may be said of jobs. What is left out, or empty, says nothing."""

    states: Sequence[JobState | str]
    """One of these."""
    definition: str
    """Of this definition."""
    labels: Mapping[str, str]
    """With all of these labels."""
    since: datetime | None
    """Submitted at this moment or later. Aware."""
    until: datetime | None
    """Submitted before this moment. Aware."""
    queue: str
    """With a step on this queue, or with one whose undo or verify is."""


def job_filter(wanted: WantedJobs) -> job_service_pb2.JobFilter:
    """As the contract says it.

    Raises:
        ValueError: No such state, or a time without a zone.
    """
    found = job_service_pb2.JobFilter(
        states=[common_pb2.JobState.Value(f"JOB_STATE_{JobState(state)}") for state in wanted.get("states", ())],
        definition_name=wanted.get("definition", ""),
        labels=dict(wanted.get("labels", {})),
        queue=wanted.get("queue", ""),
    )
    since, until = wanted.get("since"), wanted.get("until")
    if since is not None:
        found.submitted_from.FromDatetime(aware("since", since))
    if until is not None:
        found.submitted_before.FromDatetime(aware("until", until))
    return found


def step_states(states: Sequence[StepState | str]) -> list[common_pb2.StepState.ValueType]:
    """States of steps as the contract numbers them."""
    return [common_pb2.StepState.Value(f"STEP_STATE_{StepState(state)}") for state in states]


def aware(name: str, moment: datetime) -> datetime:
    """A moment that is one everywhere.

    Raises:
        ValueError: It has no time zone.
    """
    if moment.tzinfo is None:
        raise ValueError(f"{name} is {moment.isoformat()}, which has no time zone; give one, such as datetime.now(UTC)")
    return moment
