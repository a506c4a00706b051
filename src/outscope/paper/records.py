"""Results as JSON lines: appended whole, never rewritten, never duplicated."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

Record = dict[str, Any]


class Records:
    """An append-only file of records with a unique "key"."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.all: list[Record] = []
        if path.exists():
            content = path.read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            if len(whole) < len(content):
                # An interrupted write: the partial line is not a record.
                with path.open("r+b") as file:
                    file.truncate(len(whole))
            self.all = [json.loads(line) for line in whole.splitlines()]
        self._keys = {record["key"] for record in self.all if record["status"] == "done"}

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def add(self, record: Record) -> None:
        """Append one record; it is on disk when this returns."""
        if record["key"] in self._keys:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps(record, ensure_ascii=False, sort_keys=True) + "\n"
        with self.path.open("ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
        self.all.append(record)
        if record["status"] == "done":
            self._keys.add(record["key"])

    def find(self, **wanted: Any) -> list[Record]:
        """Completed records whose fields have the given values."""
        return [
            record
            for record in self.all
            if record["status"] == "done"
            and all(record.get(name) == value for name, value in wanted.items())
        ]
