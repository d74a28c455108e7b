"""The steps of a job in an answer: as many as fit, and how many there are in each state.

A definition may have thousands of steps, each with an output as large as a payload may be, and a client takes 4 MiB.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from stepward.server.api import convert, pages, validate
from stepward.server.core import keys, rows, views
from stepward.server.core.rows import StepState
from stepward.v1 import common_pb2, job_service_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stepward.server.core.limits import Limits
    from stepward.server.core.rows import DefinitionBody
    from stepward.server.core.views import JobView
    from stepward.server.reading import Reading
    from stepward.v1 import job_pb2

# Steps of one answer that speaks of a whole job. Who wants the others asks for the steps.
STEPS_MAX: Final = 1_000
# All that is said of them together. What an answer says beside them is well below a MiB.
STEPS_BYTES_MAX: Final = 2 << 20


def add(message: job_pb2.Job, reader: Reading, view: JobView, limits: Limits) -> bool:
    """Add the steps that fit, in the order of the definition, and count all. Returns whether all fit."""
    body, head = view.body, reader.head()
    message.step_counts.extend(counts(Counter(state_of(step) for step in view.steps)))
    size_bytes = 0
    for ordinal in range(min(len(body.steps), STEPS_MAX)):
        step = convert.step(body, views.step_view(reader, view.job_id, body, ordinal, limits), head)
        size_bytes += step.ByteSize()
        if size_bytes > STEPS_BYTES_MAX:
            return False
        message.steps.append(step)
    return len(body.steps) <= STEPS_MAX


def state_of(step: rows.Step | None) -> StepState:
    """What has no row yet waits for the steps that it needs."""
    return StepState.PENDING if step is None else step.state


def counts(of_states: Mapping[StepState, int]) -> Iterable[common_pb2.StepCount]:
    """How many steps are in each state, outwards; states without steps are left out."""
    for state, count in sorted(of_states.items()):
        if count:
            yield common_pb2.StepCount(state=int(state), count=count)  # type: ignore[arg-type]  # the contract's numbers


class Query(NamedTuple):
    """A checked request for a page of steps, from the position `first` on. No states: all."""

    states: frozenset[StepState]
    count_max: int
    first: int
    filters: object


def read_query(request: job_service_pb2.ListJobStepsRequest, limits: Limits) -> Query:
    """What is asked for.

    Raises:
        Refused: INVALID_ARGUMENT; PAGE_TOKEN_INVALID.
    """
    validate.require(
        violation
        for position, state in enumerate(request.states)
        for violation in validate.between(f"states[{position}]", state, min(StepState), max(StepState))
    )
    states = frozenset(StepState(state) for state in request.states)
    filters = ("steps", request.job_id, sorted(states))
    place = pages.position(filters, request.page_token)
    if place and not (place.isdecimal() and int(place[:6]) < limits.steps_max):
        raise pages.not_of_this_list()
    return Query(states, pages.page_size(request.page_size, limits), int(place or 0), filters)


def page(
    reader: Reading, job_id: str, body: DefinitionBody, query: Query, limits: Limits
) -> job_service_pb2.ListJobStepsResponse:
    """A page of the steps of a job, in the order of the definition.

    All steps of the largest definition are looked at in less time than one decision of a full batch takes, so this
    does not go in slices.
    """
    head = reader.head()
    answer = job_service_pb2.ListJobStepsResponse(revision=head.sequence)
    size_bytes = 0
    for ordinal in range(query.first, len(body.steps)):
        if query.states and _state(reader, job_id, ordinal) not in query.states:
            continue
        if len(answer.steps) == query.count_max:
            answer.next_page_token = pages.token(query.filters, str(ordinal))
            break
        step = convert.step(body, views.step_view(reader, job_id, body, ordinal, limits), head)
        size_bytes += step.ByteSize()
        if size_bytes > STEPS_BYTES_MAX and answer.steps:
            answer.next_page_token = pages.token(query.filters, str(ordinal))
            break
        answer.steps.append(step)
    return answer


def _state(reader: Reading, job_id: str, ordinal: int) -> StepState:
    step = reader.get(keys.step(job_id, ordinal))
    assert step is None or isinstance(step, rows.Step), step
    return state_of(step)
