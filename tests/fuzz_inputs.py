"""Input files with bytes changed at random: they are read, or one of our errors says why not."""

from __future__ import annotations

import json
import random
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet

from outscope import OutscopeError
from outscope.io.files import read_array, read_labels, read_matrix
from outscope.io.texts import holds_texts, read_texts

PIECES = [b"\x00", b"\xff", b'"', b",", b"\n", b"\r", b"\t", b"{", b"[" * 9999, b"null", b"1e999"]
PIECES += [b"9" * 5000, b"\\ud800", b"\xed\xa0\x80", b"-1", b"}{", b"NaN", b"'", b"\xef\xbb\xbf"]


def seeds(folder):
    """A whole file of each kind, with what reads it."""
    rows = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
    texts, labels = [f"téxt, {i}" for i in range(12)], ["a", "b"] * 6
    np.save(folder / "a.npy", rows)
    np.save(folder / "labels.npy", np.array(labels))
    np.savez(folder / "a.npz", rows)
    np.savez_compressed(folder / "two.npz", rows=rows, labels=np.array(labels))
    columns = {"text": texts, "label": labels}
    table = pyarrow.table({"v": list(rows), **columns})
    pyarrow.parquet.write_table(table, folder / "v.parquet")
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "t.parquet")
    (folder / "t.txt").write_text("\n".join(texts))
    for name, mark in (("t.csv", ","), ("t.tsv", "\t")):
        lines = [f'"{t}"{mark}{c}' for t, c in zip(texts, labels, strict=True)]
        (folder / name).write_text("\n".join([f"text{mark}label", *lines]))
    lines = [json.dumps({"text": t, "label": c}) for t, c in zip(texts, labels, strict=True)]
    (folder / "t.jsonl").write_text("\n".join(lines))
    return [
        ("a.npy", read_matrix, ""),
        ("labels.npy", read_labels, ""),
        ("a.npz", read_matrix, ""),
        ("two.npz", read_array, ":rows"),
        ("v.parquet", read_matrix, ":v"),
        ("v.parquet", read_labels, ":label"),
        *((name, read_texts, "") for name in ("t.txt", "t.csv", "t.tsv", "t.jsonl", "t.parquet")),
        ("t.parquet", holds_texts, ""),
    ]


def damage(rng, content):
    content = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 5, 40])):
        at, how = rng.randrange(len(content) + 1), rng.randrange(5)
        if how < 2 and at < len(content):
            content[at] ^= rng.randrange(1, 256)
        elif how == 2:
            content[at:at] = rng.choice(PIECES)
        elif how == 3:
            del content[at : at + rng.choice([1, 7, 300])]
        else:
            start = rng.randrange(len(content) + 1)
            content[at:at] = content[start : start + 40]
    return bytes(content)


def main(total):
    warnings.simplefilter("ignore")
    rng, read = random.Random(0), 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kinds = [(folder / n, r, c, (folder / n).read_bytes()) for n, r, c in seeds(folder)]
        for case in range(total):
            file, reader, column, content = kinds[case % len(kinds)]
            target = folder / f"case{file.suffix}"
            target.write_bytes(damage(rng, content))
            try:
                found = reader(f"{target}{column}")
                read += 1
                if isinstance(found, np.ndarray) and found.dtype.kind == "f":
                    float(np.sum(found))  # what is mapped into memory must be there
            except (OutscopeError, ImportError):
                pass
            except Exception as error:
                raise AssertionError(f"case {case}, {file.name}: {error!r}") from error
    print(f"{total} cases, {read} of them read")


if __name__ == "__main__":
    main(int(sys.argv[1]))
