"""The state tables against the enums, and against the public contract."""

from __future__ import annotations

from stepward.server.core import states
from stepward.server.core.rows import JobState, StepState
from stepward.server.core.states import Mover
from stepward.v1 import common_pb2


def test_every_state_says_what_moves_it() -> None:
    """A new state without a timer, a named mover or a person fails here."""
    assert set(states.MOVERS) == set(StepState)
    assert set(states.MOVES) == set(StepState)


def test_what_is_final_goes_nowhere_but_into_an_undo() -> None:
    """A state that nothing moves has no way on, except the undo of what was done, or may have been."""
    undo_begins = {StepState.UNDO_READY, StepState.UNDO_RETRY_WAIT}
    for state, mover in states.MOVERS.items():
        if mover is Mover.NOTHING:
            assert states.MOVES[state] <= undo_begins, state
    assert not states.MOVES[StepState.COMPENSATED]


def test_every_state_can_be_reached() -> None:
    """From PENDING, over the moves; but for those that a question and a second harm will bring."""
    reached = {StepState.PENDING}
    while True:
        more = {after for state in reached for after in states.MOVES[state]} - reached
        if not more:
            break
        reached |= more

    verify = {state for state in StepState if state.name.startswith("VERIFY_")}
    assert set(StepState) - reached == verify | {StepState.UNDO_OUTCOME_UNKNOWN}


def test_phases_do_not_mix() -> None:
    """The two directions have the same parts, and no state or event in common."""
    forward, undo = states.FORWARD[1:], states.UNDO[1:]

    assert len(forward) == len(undo) == len(set(forward))
    assert not set(forward) & set(undo)
    assert all(states.phase(state) is states.FORWARD for state in forward if isinstance(state, StepState))
    assert all(states.phase(state) is states.UNDO for state in undo if isinstance(state, StepState))


def test_job_states_are_those_of_the_contract() -> None:
    """Numbers and names are equal, so that no table has to translate them."""
    contract = {name.removeprefix("JOB_STATE_"): number for name, number in common_pb2.JobState.items()}

    assert {state.name: int(state) for state in JobState} | {"UNSPECIFIED": 0} == contract


def test_step_states_are_those_of_the_contract() -> None:
    """As for jobs."""
    contract = {name.removeprefix("STEP_STATE_"): number for name, number in common_pb2.StepState.items()}

    assert {state.name: int(state) for state in StepState} | {"UNSPECIFIED": 0} == contract
