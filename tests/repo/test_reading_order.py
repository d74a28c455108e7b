"""A package whose first page gives a reading order gives all of it."""

import ast
import re
from pathlib import PurePosixPath

import pytest

from tests.repo.sources import ROOT, files

SERVER = "server/stepward/server"


@pytest.mark.parametrize("package", ["core", "store", "logbook", "api", "peers"])
def test_reading_order_names_every_module_and_no_other(package: str) -> None:
    """A module that nobody is led to is read too late; one that is named and gone leads nowhere."""
    folder = f"{SERVER}/{package}"
    paths = [PurePosixPath(path) for path in files() if PurePosixPath(path).parent == PurePosixPath(folder)]
    modules = {path.stem for path in paths if path.suffix == ".py"} - {"__init__"}
    page = ast.get_docstring(ast.parse((ROOT / folder / "__init__.py").read_text())) or ""
    named = set(re.findall(r"`(\w+)`", page))

    assert sorted(modules ^ named) == []
