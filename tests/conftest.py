"""Which tests run, and that nothing is left out in silence.

Tests marked `slow` or `root` are left out unless `--slow` or `--root` asks for them, and the summary says how many.
With CI=true a skipped test fails: pytest itself would end with success although a rule was not checked.
"""

import os
import signal
from collections import Counter
from collections.abc import Generator

import pytest

LEFT_OUT = pytest.StashKey[Counter[str]]()
OPTIONS = {
    "slow": "also run the full form of tests that take long",
    "root": "also run tests that need root (mounts, namespaces)",
}
WORDS = {"slow": ("is slow", "are slow"), "root": ("needs root", "need root")}
SKIP_IN_CI = "CI never skips: make this test run here, or mark it `slow` or `root`. It was skipped because:"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this repository."""
    group = parser.getgroup("stepward")
    for name, help_text in OPTIONS.items():
        group.addoption(f"--{name}", action="store_true", default=False, help=help_text)
    group.addoption("--seed", type=int, default=None, help="replay the one history that a simulation printed")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse early what cannot work, and hear a Ctrl-C wherever this was started."""
    config.stash[LEFT_OUT] = Counter()
    # A shell without job control starts what runs in its background deaf to it, and each process that a test starts
    # would be, too.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--root") and os.geteuid() != 0:
        raise pytest.UsageError("--root needs root: the tests mount file systems. Run as root, or leave it away.")


@pytest.fixture(scope="session")
def only_seed(pytestconfig: pytest.Config) -> int | None:
    """The seed given with `--seed`; None means that a simulation draws its own and prints each before it runs."""
    seed: int | None = pytestconfig.getoption("--seed")
    return seed


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take out what was not asked for, and count it."""
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        lacking = [name for name in OPTIONS if item.get_closest_marker(name) and not config.getoption(f"--{name}")]
        config.stash[LEFT_OUT].update(lacking)
        (left_out if lacking else kept).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the main process what was left out, where this is one of several that share the tests."""
    told: dict[str, object] | None = getattr(session.config, "workeroutput", None)
    left_out = session.config.stash[LEFT_OUT]
    if told is not None:
        told["left_out"] = dict(left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Hear what a process left out. Each collects all tests, so the first is enough."""
    told: dict[str, int] | None = getattr(node, "workeroutput", {}).get("left_out")
    config: pytest.Config = node.config  # type: ignore[attr-defined]  # xdist ships no types for its nodes
    if told is not None and not config.stash[LEFT_OUT]:
        config.stash[LEFT_OUT].update(told)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was left out and how to run it."""
    for name, count in sorted(config.stash[LEFT_OUT].items()):
        one, many = WORDS[name]
        tests = (
            f"1 test that {one} (--{name} runs it)" if count == 1 else f"{count} tests that {many} (--{name} runs them)"
        )
        terminalreporter.write_line(f"left out: {tests}")


def in_ci() -> bool:
    """Whether a skip is a failure."""
    return os.environ.get("CI") == "true"


def failed_instead(longrepr: object) -> str:
    """The failure that a skip becomes; its `longrepr` is a triple of path, line and reason."""
    reason = longrepr[2] if isinstance(longrepr, tuple) else longrepr
    return f"{SKIP_IN_CI} {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI, fail a test that skips itself. An expected failure (`xfail`) reports as skipped too and may stay."""
    report = yield
    if in_ci() and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = failed_instead(report.longrepr)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """In CI, fail a module that skips itself as a whole (`importorskip`)."""
    report = yield
    if in_ci() and report.skipped:
        report.outcome = "failed"
        report.longrepr = failed_instead(report.longrepr)
    return report
