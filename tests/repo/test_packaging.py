"""What is installed, by whom, and with which types."""

import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.repo.sources import ROOT, files, is_generated, texts

# A module for each folder that mypy is told to check.
PLANTED = {
    "server/stepward/server/planted.py": "number: int = 'server'\n",
    "agents/stepward/agents/planted.py": "number: int = 'agents'\n",
    "client/stepward/client/planted.py": "number: int = 'client'\n",
    "proto/stepward/v1/planted.py": "number: int = 'proto'\n",
    # Sees the types of every portion, not Any.
    "tests/planted.py": (
        "import stepward.agents.planted\n"
        "import stepward.client.planted\n"
        "import stepward.server.planted\n"
        "import stepward.v1.planted\n"
        "a: str = stepward.agents.planted.number\n"
        "c: str = stepward.client.planted.number\n"
        "s: str = stepward.server.planted.number\n"
        "p: str = stepward.v1.planted.number\n"
    ),
    "loadtest/planted.py": "number: int = 'loadtest'\n",
}


def project() -> dict[str, object]:
    """The table [project] of pyproject.toml."""
    table = tomllib.loads(texts()["pyproject.toml"])["project"]
    assert isinstance(table, dict)
    return table


def test_pysyncobj_is_the_version_that_was_studied() -> None:
    """Its known holes are closed at two seams; another version may have moved them."""
    extras = project()["optional-dependencies"]
    assert isinstance(extras, dict)
    wanted = [line for line in extras["server"] if line.startswith("pysyncobj")]

    assert wanted == ["pysyncobj==0.3.17"]
    assert version("pysyncobj") == "0.3.17"


def test_plain_install_brings_no_node() -> None:
    """An agent shares its environment with its user's libraries, so it brings little."""
    dependencies = project()["dependencies"]
    assert isinstance(dependencies, list)
    names = {line.split(">")[0].split("=")[0] for line in dependencies}

    assert not names & {"pysyncobj", "lmdb", "structlog", "uvloop"}


@pytest.mark.slow
def test_types_are_checked_in_every_folder(tmp_path: Path) -> None:
    """A namespace package is easily checked in one portion only, and green in all others."""
    for path in ("pyproject.toml", *(path for path in files() if path.endswith("py.typed"))):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes((ROOT / path).read_bytes())
    for path, text in PLANTED.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    portions = next(line for line in texts()["Makefile"].splitlines() if line.startswith("PORTIONS :="))
    folders = portions.removeprefix("PORTIONS :=").split()

    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), *folders]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    found = [line.split(":")[0] for line in checked.stdout.splitlines() if "error: Incompatible types" in line]
    assert {path: found.count(path) for path in PLANTED} == {
        path: 4 if path == "tests/planted.py" else 1 for path in PLANTED
    }


@pytest.mark.slow
def test_wheel_adds_one_name_and_carries_the_contract(tmp_path: Path) -> None:
    """Agents in other languages start from the .proto files; site-packages gets `stepward` and nothing else."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(ROOT)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())

    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"stepward"}
    wanted = (path for path in files() if path.endswith((".proto", "py.typed")) or is_generated(path))
    assert {path.partition("/")[2] for path in wanted} <= names
