"""H084: the same commands give the same batches, whatever machine, time zone, language or hash seed a node has."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from stepward.server.core import keys
from stepward.server.core.rows import Row
from tests.core.test_histories import History

SEED = 7
# One process each, since Python reads this at its start; the process of the test is another place.
PLACES = (
    {"PYTHONHASHSEED": "2", "TZ": "Australia/Lord_Howe", "LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"},
    {"PYTHONHASHSEED": "3", "TZ": "Pacific/Apia", "LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8"},
)


def digest(seed: int) -> str:
    """Of all batches of a history, with the order of what stands in each: the hash of a batch is made of that, too."""
    history, hashed = History(seed), hashlib.sha256()
    apply = history.world._apply

    def noted(changes: Mapping[bytes, Row | None]) -> None:
        for key, row in changes.items():
            value = b"" if row is None else keys.encode_row(row)
            hashed.update(len(key).to_bytes(4) + key + len(value).to_bytes(4) + value)
        apply(changes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history.world, "_apply", noted)
        history.run()
    assert history.world.sequence > 100, "there is something to compare"
    return hashed.hexdigest()


def test_h084_batches_are_the_same_everywhere() -> None:
    """Neither the order of sets nor a clock, a language or a zone gets into what is decided."""
    root = Path(__file__).parents[2]
    code = f"from tests.core.test_h084_same_everywhere import digest; print(digest({SEED}))"
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code], cwd=root, env={**os.environ, **place}, stdout=subprocess.PIPE, text=True
        )
        for place in PLACES
    ]
    here = digest(SEED)
    said = [run.communicate(timeout=60)[0].strip() for run in runs]

    assert said == [here] * len(PLACES)
