"""The rules of tests/conftest.py, seen from a run of pytest of its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repo.sources import ROOT

CONFIGURATION = """
[pytest]
markers =
    root: needs root
    slow: slow
"""

SAMPLE = """
import pytest

def test_plain() -> None: ...

@pytest.mark.slow
def test_slow() -> None: ...

@pytest.mark.root
def test_root() -> None: ...

@pytest.mark.root
@pytest.mark.slow
def test_both() -> None: ...
"""

SKIPS_ITSELF = """
import pytest

def test_skips() -> None:
    pytest.skip("no such tool")
"""

SKIPS_ITS_MODULE = """
import pytest

pytest.importorskip("a_module_that_nobody_has")
"""

EXPECTED_FAILURE = """
import pytest

@pytest.mark.xfail(reason="known")
def test_fails() -> None:
    raise AssertionError
"""


HEARS_CTRL_C = """
import signal
import subprocess
import sys

def test_hears() -> None:
    ignored = "import signal, sys; sys.exit(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    assert subprocess.run([sys.executable, "-c", ignored]).returncode == 0
"""

# As a shell without job control starts what is to run in its background.
IN_THE_BACKGROUND = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")


def run_pytest(folder: Path, text: str, *options: str, ci: str, starter: tuple[str, ...] = ()) -> tuple[int, str]:
    """Run one file under our conftest; the exit code, and what was printed."""
    shutil.copy(ROOT / "tests" / "conftest.py", folder)
    (folder / "pytest.ini").write_text(CONFIGURATION)
    (folder / "test_sample.py").write_text(text)
    command = [*starter, sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:locust", *options]
    environment = os.environ | {"CI": ci}  # inherited on purpose: a real run of pytest, CI apart
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def test_leaves_out_root_and_slow_and_says_so(tmp_path: Path) -> None:
    """A plain run needs neither root nor patience; a test that needs both is counted for both."""
    code, printed = run_pytest(tmp_path, SAMPLE, ci="")

    assert code == 0
    assert "1 passed, 3 deselected" in printed
    assert "left out: 2 tests that need root (--root runs them)" in printed
    assert "left out: 2 tests that are slow (--slow runs them)" in printed


def test_runs_slow_when_asked(tmp_path: Path) -> None:
    """Without root, what needs root is still left out and said."""
    _, printed = run_pytest(tmp_path, SAMPLE, "--slow", ci="true")

    assert "2 passed, 2 deselected" in printed
    assert "are slow" not in printed


@pytest.mark.root
def test_runs_everything_as_root(tmp_path: Path) -> None:
    """Then there is nothing left to say."""
    _, printed = run_pytest(tmp_path, SAMPLE, "--slow", "--root", ci="true")

    assert "4 passed" in printed
    assert "left out" not in printed


@pytest.mark.parametrize("text", [SKIPS_ITSELF, SKIPS_ITS_MODULE])
def test_skip_is_a_failure_in_ci_only(tmp_path: Path, text: str) -> None:
    """Pytest itself exits with 0 after a skip."""
    code_in_ci, printed_in_ci = run_pytest(tmp_path, text, ci="true")
    _, printed = run_pytest(tmp_path, text, ci="")

    assert code_in_ci != 0
    assert "CI never skips" in printed_in_ci
    assert "1 skipped" in printed


def test_expected_failure_is_no_skip(tmp_path: Path) -> None:
    """It ran, and failed as it was said to."""
    code, printed = run_pytest(tmp_path, EXPECTED_FAILURE, ci="true")

    assert code == 0
    assert "1 xfailed" in printed


def test_what_tests_start_hears_a_ctrl_c_also_in_the_background(tmp_path: Path) -> None:
    """Otherwise tests that send one to a process of theirs would wait for its end in vain."""
    code, said = run_pytest(tmp_path, HEARS_CTRL_C, ci="", starter=IN_THE_BACKGROUND)

    assert code == 0, said
