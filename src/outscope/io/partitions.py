"""Results of a source in a folder: one file for each part, so that a stopped run can go on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outscope.errors import InputError, require
from outscope.io.atomic import check_folder_writable, is_aside, whole_file

MANIFEST = "_source.json"


def check_partitions(folder: Path) -> None:
    """Refuse a folder that is neither new nor one of results, before any work is done."""
    require("pyarrow.parquet", extra="parquet")
    check_folder_writable(folder, ours=_is_ours)


def _is_ours(folder: Path) -> bool:
    # A run that was killed at once leaves no more than a file that was being written.
    return (folder / MANIFEST).is_file() or all(is_aside(path) for path in folder.iterdir())


class Partitions:
    """A folder of results: `part-00001.parquet` and so on, and a manifest of what they belong to.

    `told` says whose results these are; a folder of other results is refused.
    """

    def __init__(self, folder: Path, told: Mapping[str, Any], rows: Sequence[int]) -> None:
        self.folder, self._rows = folder, rows
        check_partitions(folder)
        manifest = folder / MANIFEST
        if manifest.is_file():
            self._refuse_other(manifest, json.loads(json.dumps(told)))
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot write to {folder}: {error.strerror or error}") from error
        with whole_file(manifest) as file:
            file.write((json.dumps(told, indent=1) + "\n").encode())

    def _refuse_other(self, manifest: Path, told: Mapping[str, Any]) -> None:
        try:
            there = json.loads(manifest.read_bytes())
            other = [name for name in told if there.get(name) != told[name]]
        except (OSError, ValueError, AttributeError) as error:
            raise InputError(f"{manifest} cannot be read; give a new folder") from error
        if other:
            raise InputError(
                f"{self.folder} holds results of another {' and '.join(other)}; give a new folder, "
                "or delete this one"
            )

    def path(self, part: int) -> Path:
        """The file of one part, numbered from 1 like the blocks in messages."""
        return self.folder / f"part-{part + 1:05d}.parquet"

    def missing(self) -> list[int]:
        """The parts whose results are not there, or not whole."""
        return [part for part in range(len(self._rows)) if not self._is_whole(part)]

    def _is_whole(self, part: int) -> bool:
        parquet = require("pyarrow.parquet", extra="parquet")
        try:
            return bool(parquet.read_metadata(self.path(part)).num_rows == self._rows[part])
        except Exception:  # it is not there, or not ours: Arrow raises many kinds
            return False

    def write(self, part: int, columns: Mapping[str, Any]) -> None:
        """Write the results of one part; its file appears whole."""
        table = require("pyarrow", extra="parquet").table(dict(columns))
        with whole_file(self.path(part)) as file:
            require("pyarrow.parquet", extra="parquet").write_table(table, file)

    def column(self, part: int, name: str) -> Any:
        """One column of the results of a part."""
        table = require("pyarrow.parquet", extra="parquet").read_table(
            self.path(part), columns=[name]
        )
        return table.column(0).to_numpy()
