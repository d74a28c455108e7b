"""The state tables against the enums, and against the public contract."""

from __future__ import annotations

from stepward.server.core import states
from stepward.server.core.rows import JobState, Part, StepState
from stepward.server.core.states import Mover
from stepward.v1 import common_pb2


def test_every_state_says_what_moves_it() -> None:
    """A new state without a timer, a named mover or a person fails here."""
    assert set(states.MOVERS) == set(StepState)
    assert set(states.MOVES) == set(StepState)


def test_what_is_final_goes_nowhere_but_into_an_undo() -> None:
    """A state that nothing moves has no way on, but the undo of what was done or may have been, and asking first."""
    undo_begins = {phase for each in (states.UNDO, states.VERIFY) for phase in (each.ready, each.retry_wait)}
    for state, mover in states.MOVERS.items():
        if mover is Mover.NOTHING:
            assert states.MOVES[state] <= undo_begins, state
    assert not states.MOVES[StepState.COMPENSATED]


def test_every_state_can_be_reached() -> None:
    """From PENDING, over the moves."""
    reached = {StepState.PENDING}
    while True:
        more = {after for state in reached for after in states.MOVES[state]} - reached
        if not more:
            break
        reached |= more

    assert reached == set(StepState)


def test_phases_do_not_mix() -> None:
    """The parts of a step have states and events for the same things, and none in common."""
    told = [(type(each), each) for phase in states.PHASES for each in phase]

    assert len(told) == len(set(told))
    assert {phase.part for phase in states.PHASES} == set(Part)
    for phase in states.PHASES:
        assert all(states.phase(state) is phase for state in phase if isinstance(state, StepState))


def test_every_state_belongs_to_a_part() -> None:
    """Those behind the undo states too, whose numbers are higher."""
    parts = {state: states.phase(state).part for state in StepState}

    assert {state for state, part in parts.items() if part is Part.VERIFY} == {
        state for state in StepState if state.name.startswith("VERIFY_")
    }
    assert {state for state, part in parts.items() if part is Part.UNDO} == {
        state for state in StepState if state.name.startswith("UNDO_") or state is StepState.COMPENSATED
    }


def test_job_states_are_those_of_the_contract() -> None:
    """Numbers and names are equal, so that no table has to translate them."""
    contract = {name.removeprefix("JOB_STATE_"): number for name, number in common_pb2.JobState.items()}

    assert {state.name: int(state) for state in JobState} | {"UNSPECIFIED": 0} == contract


def test_step_states_are_those_of_the_contract() -> None:
    """As for jobs."""
    contract = {name.removeprefix("STEP_STATE_"): number for name, number in common_pb2.StepState.items()}

    assert {state.name: int(state) for state in StepState} | {"UNSPECIFIED": 0} == contract
