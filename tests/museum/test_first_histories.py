"""The first of the random histories of `tests/model`: as many as a fault needs to show itself."""

from tests.model.test_model import run

HISTORIES = 100


def test_first_histories() -> None:
    """Rows, model and outside world agree in each; the first that is red ends it."""
    for seed in range(HISTORIES):
        run(seed)
