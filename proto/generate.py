"""Writes the Python code of the protos beside them, or checks that what is there is what would be written.

Runs in the environment of the dependency group `gen` (`make protos`, `make protos-fresh`), whose tools are older than
those of a node on purpose: their output loads on every protobuf and grpcio that stepward accepts. Imports nothing but
the standard library, so that it can also be type checked outside of that environment.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PROTO = Path(__file__).resolve().parent
GENERATED = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi")
SERVICE = re.compile(r"^service ", re.MULTILINE)


def generate(target: Path) -> None:
    """Write the code of every proto below `target`, in the folders of their packages."""
    paths = sorted(PROTO.rglob("*.proto"))
    run_protoc(target, ("python", "mypy"), paths)
    # Stubs only where there is something to call; the plugins write an empty module otherwise.
    run_protoc(target, ("grpc_python", "mypy_grpc"), [path for path in paths if SERVICE.search(path.read_text())])


def run_protoc(target: Path, plugins: tuple[str, str], paths: list[Path]) -> None:
    """Run the compiler of this environment with one plugin of its own and one of mypy-protobuf."""
    builtin, stubs = plugins
    # The plugin of this environment, whatever PATH says.
    executable = Path(sys.executable).parent / f"protoc-gen-{stubs}"
    command = [
        *(sys.executable, "-m", "grpc_tools.protoc", "--proto_path=.", f"--{builtin}_out={target}"),
        # `quiet`: no line for every file that it writes.
        *(f"--plugin=protoc-gen-{stubs}={executable}", f"--{stubs}_out=quiet:{target}"),
    ]
    subprocess.run([*command, *(str(path.relative_to(PROTO)) for path in paths)], cwd=PROTO, check=True)


def generated_below(folder: Path) -> dict[str, bytes]:
    """All generated files below a folder: path from there, and content."""
    paths = (path for pattern in GENERATED for path in folder.rglob(pattern))
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def differences() -> list[str]:
    """The generated files that are not what would be written now, each with what is wrong with it."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        wanted = generated_below(Path(folder))
    found = generated_below(PROTO)
    return [
        *(f"proto/{path}: missing" for path in sorted(wanted.keys() - found.keys())),
        *(f"proto/{path}: its .proto is gone" for path in sorted(found.keys() - wanted.keys())),
        *(f"proto/{path}: differs" for path in sorted(wanted.keys() & found.keys()) if wanted[path] != found[path]),
    ]


def main() -> int:
    """Generate, or with `--check` compare and say what differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when something differs")
    if parser.parse_args().check:
        wrong = differences()
        for line in wrong:
            print(line)
        if wrong:
            print("Generated code is never edited: run `make protos` and commit what it writes.")
        return 1 if wrong else 0
    for path in generated_below(PROTO):
        (PROTO / path).unlink()
    generate(PROTO)
    return 0


if __name__ == "__main__":
    sys.exit(main())
