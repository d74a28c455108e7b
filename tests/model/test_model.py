"""The plain model and the outside world agree with the rules, over thousands of random histories.

Each history is its seed. A red one is told with its definition and its last events, and `--seed` replays it alone.
"""

from __future__ import annotations

from collections import Counter

import pytest

from stepward.server.core.rows import JOB_STATES_FINAL
from tests.model.histories import History

# Events that are shown of a history that is red.
EVENTS_SHOWN = 40
SHARDS = 25
HISTORIES = 200


def run(seed: int) -> str:
    """How the job of one history ended."""
    history, end = History(seed), ""
    try:
        end = history.run().name
    finally:
        if not end:
            print(told(history))
    return end


def told(history: History) -> str:
    """A history in words: how to replay it, what its job is, and what happened last."""
    steps = [
        f"  {spec.id} needs {[history.body.steps[need].id for need in spec.needs]}, {spec.effect.name}, "
        f"{spec.start.name}, undo {spec.undo and spec.undo.effect.name}, verify {spec.verify is not None}, "
        f"on unknown {spec.on_unknown.name}, {spec.retry.attempts_max} attempts"
        for spec in history.body.steps
    ]
    events = [f"  {line}" for line in history.model.trace[-EVENTS_SHOWN:]]
    return "\n".join([f"replay with: pytest tests/model --seed {history.seed}", *steps, "last events:", *events])


def test_histories(only_seed: int | None) -> None:
    """Rows, model and outside world agree in every history, and jobs end in every way."""
    if only_seed is not None:
        run(only_seed)
        return
    ends = Counter(run(seed) for seed in range(250))

    assert ends.keys() == {state.name for state in JOB_STATES_FINAL}
    assert min(ends.values()) > 20, ends


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_many_histories(shard: int) -> None:
    """The same, for 5,000 others."""
    for seed in range(1_000 + shard * HISTORIES, 1_000 + (shard + 1) * HISTORIES):
        run(seed)
