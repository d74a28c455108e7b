"""What steps need, as a graph of positions: circles in it, and who comes before whom.

Loops with lists of our own instead of recursion: a chain may be as long as a definition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Needs = Sequence[Sequence[int]]


def circles(needs: Needs) -> Iterator[tuple[int, ...]]:
    """Each circle that a walk along the needs closes, once: every step in it needs the next, the last the first.

    Without any exactly when the graph has none. Where circles share steps there may be more than are found.
    """
    on_path: dict[int, None] = {}
    done: set[int] = set()
    for root in range(len(needs)):
        if root in done:
            continue
        on_path[root] = None
        walk = [iter(needs[root])]
        while walk:
            following = next(walk[-1], None)
            if following is None:
                walk.pop()
                done.add(on_path.popitem()[0])
            elif following in on_path:
                path = list(on_path)
                yield tuple(path[path.index(following) :])
            elif following not in done:
                on_path[following] = None
                walk.append(iter(needs[following]))


def ancestors(needs: Needs) -> list[int]:
    """For each position the set of all positions that it needs, directly or not, as the bits of a number.

    The graph has no circles.
    """
    dependents: list[list[int]] = [[] for _ in needs]
    for position, needed in enumerate(needs):
        for need in needed:
            dependents[need].append(position)
    open_needs = [len(needed) for needed in needs]
    before = [0] * len(needs)
    ready = [position for position, count in enumerate(open_needs) if count == 0]
    while ready:
        position = ready.pop()
        for dependent in dependents[position]:
            before[dependent] |= before[position] | 1 << position
            open_needs[dependent] -= 1
            if open_needs[dependent] == 0:
                ready.append(dependent)
    return before
