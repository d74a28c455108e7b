"""The body of `stepward demo`: three trips on a server, agents and a travel service that it starts for them.

Reading order: `trips` (what is shown and why), `show` (the order of events), `stage` (what runs meanwhile, on top of
`processes`), `screen` (what a person sees), `verdict` (pure: did everything come as promised?), `page` (the same as a
page to read).
"""

from __future__ import annotations

from pathlib import Path


def main(*, fast: bool, docs: Path | None, keep: bool) -> int:
    """Show the three trips.

    Args:
        fast: Whether to leave out the pauses that let eyes follow.
        docs: Where to write what happened as a page, `trip.md`.
        keep: Whether to keep the data and logs also when all went well.

    Returns:
        The exit code: 0 when everything came as promised, else 1.
    """
    from stepward.client.demo.show import run

    return run(fast=fast, docs=docs, keep=keep)
