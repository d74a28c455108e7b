"""Where files may lie and what they may be called."""

from pathlib import PurePosixPath

import pytest

from tests.repo.sources import PORTIONS, ROOT, below, files, sources, written

LINES_MAX = 500
MODULES_WITHOUT_DESIGN_MAX = 20
NAMES_THAT_SAY_NOTHING = frozenset({"utils", "util", "common", "helpers", "helper", "manager", "misc"})


@pytest.mark.parametrize("portion", PORTIONS)
def test_portion_is_a_namespace(portion: str) -> None:
    """A package file here would hide the other portions of `stepward`."""
    found = {path for path in files() if path in {f"{portion}/__init__.py", f"{portion}/stepward/__init__.py"}}

    assert not found


@pytest.mark.parametrize("portion", ["server", "agents", "client"])
def test_portion_holds_one_package(portion: str) -> None:
    """`stepward.<folder>` lives in `<folder>/stepward/<folder>`."""
    found = {path.split("/")[2] for path in files() if path.startswith(f"{portion}/stepward/")}

    assert found <= {portion}


@pytest.mark.parametrize(
    "package",
    [
        "server/stepward/server",
        "agents/stepward/agents",
        "client/stepward/client",
        "proto/stepward/v1",
        "proto/stepward/internal/v1",
    ],
)
def test_package_says_that_it_is_typed(package: str) -> None:
    """Without `py.typed` the type checkers of those who install it see nothing but Any."""
    assert f"{package}/py.typed" in files()


def test_every_folder_of_modules_is_a_package() -> None:
    """Below the namespace a folder without `__init__.py` would be another namespace, open to anyone."""
    folders = {
        str(PurePosixPath(source.path).parent)
        for source in sources()
        if source.path.startswith(tuple(f"{portion}/stepward/" for portion in PORTIONS))
    }

    assert [folder for folder in sorted(folders) if f"{folder}/__init__.py" not in files()] == []


@pytest.mark.parametrize("folder", ["server", "agents", "client", "proto", "tests", "loadtest"])
def test_top_folder_has_a_design_page(folder: str) -> None:
    """Each top folder answers why it is so, as soon as there is enough of it to ask."""
    modules = [source for source in below(folder) if not source.path.endswith("__init__.py")]
    asked = len(modules) > MODULES_WITHOUT_DESIGN_MAX
    written_page = (ROOT / folder / "DESIGN.md").exists()

    assert written_page or not asked, f"write {folder}/DESIGN.md"


def test_no_module_is_named_after_nothing() -> None:
    """A file is about one noun of the domain; these are where nouns go that nobody looked for."""
    parts = {path: set(PurePosixPath(path).with_suffix("").parts) for path in files() if path.endswith((".py", ".pyi"))}

    assert [path for path, names in parts.items() if names & NAMES_THAT_SAY_NOTHING] == []


def test_files_are_short() -> None:
    """Near 400 lines a file asks to be split by noun; at 500 it must be."""
    lengths = {source.path: source.text.count("\n") for source in written()}

    assert {path: length for path, length in lengths.items() if length > LINES_MAX} == {}


def test_nothing_in_the_root_shadows_the_package() -> None:
    """Python puts the current folder first, so a `stepward` here would be imported instead."""
    assert not (ROOT / "stepward").exists()
