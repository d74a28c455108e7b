"""`pytest tests/scenarios --rewrite` writes what the rules give now into the transcripts. Read the difference."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option. It exists when pytest is started on this folder."""
    group = parser.getgroup("stepward")
    group.addoption("--rewrite", action="store_true", help="rewrite the results of transcripts with what comes of them")


@pytest.fixture
def rewrite(pytestconfig: pytest.Config) -> bool:
    """Whether transcripts are to be rewritten."""
    return bool(pytestconfig.getoption("--rewrite", default=False))
