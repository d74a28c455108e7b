"""gRPC takes any option and says nothing of one that it does not know: a name that is spelled wrong does nothing."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from tests.repo.sources import below

OPTION = re.compile(r"\"(grpc\.[a-z0-9_.]+)\"")


def test_every_option_is_one_that_grpc_knows() -> None:
    """Its library holds the names."""
    place = importlib.import_module("grpc._cython.cygrpc").__file__
    assert place is not None
    library = Path(place).read_bytes()
    used = {
        (source.path, name)
        for source in below("server", "agents", "client", "loadtest", "tests")
        for name in OPTION.findall(source.text)
    }

    assert len(used) > 20
    assert sorted(f"{path}: {name}" for path, name in used if name.encode() + b"\0" not in library) == []
