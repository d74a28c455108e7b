"""The generated code of the contract is what the protos say, and loads where we promise."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.repo.sources import ROOT, files, is_generated, texts

# The oldest grpcio and protobuf that we accept, from pyproject.toml.
GRPCIO_FLOOR = "1.76.0"
PROTOBUF_FLOOR = "6, 31, 1"


def test_generated_code_loads_on_the_oldest_libraries() -> None:
    """Newer tools write code that refuses to load on the protobuf that other libraries hold an agent to."""
    grpcio = {
        found[1]
        for path, text in texts().items()
        if path.endswith("_pb2_grpc.py") and (found := re.search(r"GRPC_GENERATED_VERSION = '(.*)'", text))
    }
    protobuf = {
        ", ".join(found.groups())
        for path, text in texts().items()
        if path.endswith("_pb2.py") and (found := re.search(r"Domain\.PUBLIC,\s+(\d+),\s+(\d+),\s+(\d+),", text))
    }

    assert grpcio <= {GRPCIO_FLOOR}
    assert protobuf <= {PROTOBUF_FLOOR}
    assert f"grpcio>={GRPCIO_FLOOR.removesuffix('.0')}," in texts()["pyproject.toml"]
    assert f"protobuf>={PROTOBUF_FLOOR.replace(', ', '.')}," in texts()["pyproject.toml"]


@pytest.mark.slow
def test_generated_code_is_never_edited(tmp_path: Path) -> None:
    """What is committed is what the protos give; one changed byte is noticed, and so is code without a proto."""
    subprocess.run(["make", "--silent", ".venv-gen/.stamp"], cwd=ROOT, check=True, capture_output=True)
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    stubs = [path for path in files() if path.startswith("proto/") and is_generated(path) and path.endswith(".pyi")]
    edited = tmp_path / stubs[0]

    def check() -> str:
        """What the check of the copy says."""
        command = [str(ROOT / ".venv-gen/bin/python"), str(tmp_path / "proto/generate.py"), "--check"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    assert check() == ""

    edited.write_text(edited.read_text() + "\n")
    (tmp_path / "proto/stepward/v1/gone_pb2.py").touch()

    assert check().splitlines()[:2] == ["proto/stepward/v1/gone_pb2.py: its .proto is gone", f"{stubs[0]}: differs"]
