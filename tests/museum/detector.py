"""How a fault is seen: tests of this repository are run inside this process, and tell how they went red."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.repo.sources import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

# Each is one that would disturb the run around this one: what it captures, the alarm clock, the traces of a crash, the
# files that it leaves.
PLUGINS_LEFT_OUT = ("faulthandler", "cacheprovider")


class Run(NamedTuple):
    """What became of a test: whether it ran, and what the first red one of it said."""

    ran: int
    error: BaseException | None

    @property
    def red(self) -> bool:
        """Whether a test failed."""
        return self.error is not None


class _Watcher:
    """Hears how tests went. An exception is kept as it is, so that its kind can be judged."""

    def __init__(self) -> None:
        self.ran = 0
        self.error: BaseException | None = None

    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> None:
        """Each test has three phases; in any of them it may go wrong."""
        self.ran += call.when == "call"
        if call.excinfo is not None and self.error is None:
            self.error = call.excinfo.value

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A test that cannot even be collected is no detector."""
        if report.failed and self.error is None:
            self.error = ImportError(str(report.longrepr))


def run(node_id: str) -> Run:
    """Run a test, or all of a file or of a function, until the first one that is red."""
    watcher = _Watcher()
    left_out = [word for name in PLUGINS_LEFT_OUT for word in ("-p", f"no:{name}")]
    arguments: Sequence[str] = [
        "-x",
        *left_out,
        "--override-ini=timeout=0",
        f"--rootdir={ROOT}",
        f"{ROOT}/{node_id}",
    ]
    pytest.main(list(arguments), plugins=[watcher])
    return Run(watcher.ran, watcher.error)
