"""Two nodes are made to believe that they lead, and both want to remedy the same steps: it is done once."""

from __future__ import annotations

import re

from tests.simulation.test_seeds import simulate

SEEDS = 6


def test_no_step_is_remedied_twice_where_two_nodes_believe_to_lead(only_seed: int | None) -> None:
    """The ledger has no gap and no trouble twice, and no token is executed that no remedy explains (see the oracle)."""
    if only_seed is not None:
        print(simulate("--two-leaders", "--seed", only_seed))
        return
    counted = dict(re.findall(r"belief (.+) (\d+)\n", simulate("--two-leaders", "--seeds", SEEDS)))

    assert int(counted["deceived"]) >= SEEDS
    # While the first of them still led, the other decided about the same steps.
    assert int(counted["shared"]) > 0
