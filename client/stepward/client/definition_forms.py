"""The forms in which a definition may be given: built in Python, the contract's message, or the path of a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from stepward.v1 import definition_pb2

if TYPE_CHECKING:
    from stepward.client.definition import Definition

AnyDefinition: TypeAlias = "Definition | definition_pb2.Definition | Path | str"


def definition_message(definition: AnyDefinition) -> definition_pb2.Definition:
    """The contract's message. A text is the path of a file, as in `open`.

    Raises:
        DefinitionFileError: The file cannot be read; all that is wrong in it is told.
        DefinitionError: The definition has no steps yet.
    """
    if isinstance(definition, definition_pb2.Definition):
        return definition
    if isinstance(definition, str | Path):
        # Only who brings files needs a reader of YAML.
        from stepward.client.definition_file import load

        return load(definition)
    return definition.to_proto()
