"""The fields that the folders of an input's files give: the same ones for each file, of the types that are declared."""

from __future__ import annotations

import csv
import io
import logging
import math
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import inspect

from runtime.encoding.formats.rows import alternatives, column_types
from runtime.encoding.json_text import to_json
from runtime.model.errors import SamzaError
from runtime.systems.files.places.locations import DataFile

_log = logging.getLogger("samza_dsl")
_ZEROS = re.compile(r"\A(-?)0+(?=[0-9])")
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_TYPES: dict[type[inspect.Type], type] = {inspect.IntType: int, inspect.FloatType: float, inspect.BoolType: bool}


class Folders:
    """By file, the fields that the names of its folders give; raises SamzaError where files have different ones.

    A field that a row has itself as well is what the folder says, as for Spark and Hive: the first one is told.
    """

    def __init__(self, files: Sequence[DataFile]) -> None:
        self._fields = [dict(file.fields) for file in files]
        self.names = tuple(self._fields[0]) if files else ()
        self._files = files
        self._spelled = [to_json(name) for name in self.names]
        self._is_told = not self.names
        for file, fields in zip(files, self._fields, strict=True):
            if fields.keys() != set(self.names):
                raise SamzaError(
                    f"the folders of {files[0].path} give the fields {_told(self.names)}, and those of {file.path} "
                    f"{_told(tuple(fields))}: bind folders that give the same ones"
                )

    def values(self, partition: int, kind: object = Any) -> dict[str, object]:
        """Return the fields of a file as a record type has them: as text where that does not say otherwise."""
        fields = self._fields[partition]
        return {name: typed(fields[name], info) for name, info in column_types(kind, self.names).items()}

    def told_of(self, partition: int, columns: Collection[str]) -> None:
        """Tell in the log of a file whose rows have columns that its folder gives, if none was told yet."""
        if not self._is_told and (both := [name for name in self.names if name in columns]):
            self._is_told = True
            _log.warning(
                "%s has the column %r, which its folder gives as well: what the folder says counts, in all files of "
                "this input. Where rows say something else, leave the column out, or rename it",
                self._files[partition].path,
                both[0],
            )

    def with_json(self, partition: int, kind: object, lines: Sequence[bytes]) -> list[bytes]:
        """Return JSON objects with the fields of their file behind their own; other JSON stays as it is."""
        for line in () if self._is_told else lines:
            # Few lines have such a name in them, and only these are looked at twice.
            if any(name in line for name in self._spelled):
                with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                    self.told_of(partition, _OBJECT(line))
        added = to_json(self.values(partition, kind))[1:-1]
        return [_with_fields(line, added) for line in lines]

    def with_cells(
        self, partition: int, records: Sequence[bytes], kind: object, form: dict[str, Any], null: str
    ) -> list[bytes]:
        """Return records of CSV of some form, where a text stands for None, with the fields of their file behind."""
        said = self._fields[partition]
        values = self.values(partition, kind).items()
        told = [null if said[name] is None else str(one) if type(one) is int else said[name] for name, one in values]
        cells = io.StringIO()
        # An empty cell in front, so that what is written begins with a delimiter.
        csv.writer(cells, lineterminator="", **form).writerow(["", *told])
        added = cells.getvalue().encode()
        return [record + added for record in records]


def typed(text: str | None, info: inspect.Type) -> object:
    """Return the value of a folder's name as a type has it; text where it can't be, which tells whoever decodes it.

    >>> typed("07", inspect.IntType()), typed("07", inspect.StrType()), typed("seven", inspect.IntType())
    (7, '07', 'seven')
    """
    kinds = [type(kind) for kind in alternatives(info)]
    if text is None or inspect.StrType in kinds:
        return text
    for kind, plain in _TYPES.items():
        if kind in kinds:
            try:
                # Of months and hours there are as many digits as of the longest.
                number = _ZEROS.sub(r"\1", text) if plain is int else text
                found: object = msgspec.convert(number, plain, strict=False)
                # JSON has no NaN: as text it stays what whoever decodes it takes for one, or tells of.
                return found if not isinstance(found, float) or math.isfinite(found) else text
            except msgspec.ValidationError:
                continue
    return text


def _with_fields(line: bytes, added: bytes) -> bytes:
    bare = line.strip()
    if bare[:1] != b"{" or bare[-1:] != b"}":
        return line
    own = bare[:-1].rstrip()
    return own + (b"," if own != b"{" else b"") + added + b"}"


def _told(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "(none)"
