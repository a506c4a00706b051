"""Rows from files, folders, datasets and functions: the same rows, and every damage is named."""

from __future__ import annotations

import os
import re

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from outscope import InputError
from outscope.io import parts, tables
from outscope.io.sources import ArraySource, as_source, checked, converted, taken

N, WIDTH = 1000, 6


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(parts, "PART_ROWS", 100)
    monkeypatch.setattr(tables, "ROWS_AT_A_TIME", 30)


@pytest.fixture(scope="module")
def X():
    return np.random.default_rng(0).normal(size=(N, WIDTH)).astype(np.float32)


def column(X, *, fixed=False):
    flat = pa.array(np.ascontiguousarray(X).ravel())
    if fixed:
        return pa.FixedSizeListArray.from_arrays(flat, X.shape[1])
    return pa.ListArray.from_arrays(np.arange(0, X.size + 1, X.shape[1], dtype=np.int32), flat)


def table(X, **kind):
    return pa.table({"id": np.arange(len(X)), "vector": column(X, **kind)})


def npy(X, folder):
    np.save(folder / "a.npy", X)
    return str(folder / "a.npy")


def by_columns(X, folder):
    np.save(folder / "a.npy", np.asfortranarray(X))
    return folder / "a.npy"


def mapped(X, folder):
    return np.load(npy(X, folder), mmap_mode="r")


def big_groups(X, folder):
    pq.write_table(table(X), folder / "a.parquet", row_group_size=700)
    return folder / "a.parquet"


def small_groups(X, folder):
    pq.write_table(table(X, fixed=True), folder / "a.parquet", row_group_size=30)
    return f"{folder}/a.parquet:vector"


def npy_folder(X, folder):
    for i, start in enumerate(range(0, N, 170)):
        np.save(folder / f"part-{i}.npy", X[start : start + 170])
    np.save(folder / "part-9.npy", X[:0])
    (folder / "_SUCCESS").touch()
    (folder / "notes.md").write_text("not rows")
    return folder


def npy_pattern(X, folder):
    return f"{npy_folder(X, folder)}/part-*.npy"


def parquet_folder(X, folder):
    for i, start in enumerate(range(0, N, 370)):
        pq.write_table(table(X[start : start + 370]), folder / f"{i}.parquet", row_group_size=60)
    return f"{folder}/"


def arrow_dataset(X, folder):
    return pa.dataset.dataset(parquet_folder(X, folder), format="parquet")


def feather_dataset(X, folder):
    for i, start in enumerate(range(0, N, 370)):
        pa.feather.write_feather(table(X[start : start + 370]), folder / f"{i}.feather")
    return pa.dataset.dataset(folder, format="feather")


def dataset_in_memory(X, folder):
    return pa.dataset.dataset(table(X))


def arrow_table(X, folder):
    return pa.concat_tables([table(X[:333]), table(X[333:])])


def huggingface(X, folder):
    return datasets.Dataset(table(X))


def huggingface_chosen(X, folder):
    order = np.random.default_rng(0).permutation(N)
    return datasets.Dataset(table(X[order])).select(np.argsort(order))


def function(X, folder):
    def blocks():
        for start in range(0, N, 37):
            yield X[start : start + 37]

    return blocks


def large_blocks(X, folder):
    return lambda: iter([X[:640], X[640:640], X[640:]])


KINDS = [
    npy,
    by_columns,
    mapped,
    big_groups,
    small_groups,
    npy_folder,
    npy_pattern,
    parquet_folder,
    arrow_dataset,
    feather_dataset,
    dataset_in_memory,
    arrow_table,
    huggingface,
    huggingface_chosen,
    function,
    large_blocks,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64], ids=lambda d: d.__name__)
def test_every_kind_gives_the_same_rows_in_any_order(kind, dtype, X, tmp_path):
    X = X.astype(dtype)
    source = as_source(kind(X, tmp_path))
    assert (len(source), source.width) == X.shape
    assert max(part.rows for part in source.parts) <= 100
    assert min(part.rows for part in source.parts) > 0
    for _ in range(2):
        found = [source.read(i) for i in range(len(source.parts))]
        assert found[0].dtype == dtype
        assert [len(rows) for rows in found] == [part.rows for part in source.parts]
        assert np.array_equal(np.concatenate(found), X)
    for i in (3, 1, 1, 7):
        assert np.array_equal(source.read(i), found[i])
    chosen = np.array([0, 1, 99, 100, 101, 555, 998, 999])
    assert np.array_equal(source.take(chosen), X[chosen])
    assert source.take(chosen[:0]).shape == (0, WIDTH)
    wanted = np.float64 if dtype == np.float64 else np.float32
    rows = checked(source, 2)
    assert rows.dtype == wanted
    assert rows.flags.c_contiguous
    assert rows.flags.writeable
    assert np.array_equal(rows, found[2])
    assert np.array_equal(taken(source, chosen), X[chosen])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_fingerprint_follows_the_content(kind, X, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    given = kind(X, first)
    assert as_source(given).fingerprint() == as_source(given).fingerprint()
    assert as_source(given).fingerprint() != as_source(kind(X + 1, second)).fingerprint()


def test_small_neighbours_share_a_part_and_large_pieces_are_cut():
    found = [(part.start, part.rows) for part in parts.cut("x", [60, 40, 1, 250, 50, 0])]
    assert found == [(0, 100), (100, 1), (101, 100), (201, 100), (301, 50), (351, 50)]
    assert parts.cut("x", []) == parts.cut("x", [0]) == []


def test_what_fits_in_memory_is_no_source(X):
    import pandas as pd

    frame = pa.table({"a": X[:, 0], "b": X[:, 1]})
    for given in (X, X.tolist(), tuple(X), pd.DataFrame(X), frame, None, 3.0):
        assert as_source(given) is None
    source = ArraySource(X)
    assert as_source(source) is source


def read_all(source):
    return np.concatenate([source.read(i) for i in range(len(source.parts))])


def refused(words, given, column=None):
    with pytest.raises(InputError, match=words) as caught:
        as_source(given, column)
    return str(caught.value)


def test_what_can_be_read_only_once_is_refused_with_the_way_out(X):
    refused(r"a generator can be read only once.*function that makes it.*partial_fit", iter_of(X))
    refused("a list_iterator can be read only once", iter([X]))
    refused("several datasets.*train.*give one", datasets.DatasetDict(train=huggingface(X, None)))
    refused("function that returns an iterator", huggingface(X, None).to_iterable_dataset())


def iter_of(X):
    yield X


def test_files_that_are_not_there_or_hold_no_rows(X, tmp_path):
    refused("no.npy does not exist; give .npy or .parquet", tmp_path / "no.npy")
    refused("finds no file", f"{tmp_path}/*.npy")
    refused("holds no .npy, .parquet file$", tmp_path)
    deeper = tmp_path / "deep" / "er"
    deeper.mkdir(parents=True)
    np.save(deeper / "a.npy", X)
    told = refused(r"for files in its folders, give '(.*)'", tmp_path)
    assert len(as_source(re.search("'(.*)'", told)[1])) == N
    (tmp_path / "b.txt").write_text("words")
    refused("b.txt is no file of rows", tmp_path / "b.txt")
    np.save(tmp_path / "a.npy", X[:0])
    refused("has 0 rows", tmp_path / "a.npy")
    (tmp_path / "b.npy").touch()
    refused(r"b.npy is empty \(0 bytes\)", tmp_path)
    (tmp_path / "b.npy").unlink()
    pq.write_table(table(X), tmp_path / "c.parquet")
    refused("holds .npy and .parquet files; give a pattern", tmp_path)
    assert len(as_source(f"{tmp_path}/*.parquet:vector")) == N
    refused("no column 'other'; it has id, vector", f"{tmp_path}/*.parquet:other")
    refused("column id holds int64; expected lists of numbers", tmp_path / "c.parquet", "id")
    refused("arrays, which have no column 'x'", f"{tmp_path}/a.npy:x")


def test_files_that_hold_something_else(X, tmp_path):
    path = tmp_path / "a.npy"
    for array, words in (
        (np.array([["a"]]), "holds <U1; expected numbers"),
        (X[0], r"shape \(6,\); expected a matrix"),
        (X.astype(complex), "holds complex128"),
    ):
        np.save(path, array)
        refused(words, path)
    np.save(path, np.array([[None]]), allow_pickle=True)
    refused("holds objects", path)
    np.save(path, X)
    path.write_bytes(path.read_bytes()[:-100])
    refused("a.npy cannot be read as npy", path)
    path.unlink()
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": ["x"], "b": [["x"]]}), path)
    refused("no column of vectors", path)
    refused("column b holds list<", path, "b")
    pq.write_table(pa.table({"a": [[1.0]], "b": [[1.0, 2.0]]}), path)
    refused("several columns of vectors: a, b; name one, as in .*a.parquet:a", path)
    assert as_source(path, "b").width == 2
    path.write_bytes(path.read_bytes()[:-10])
    refused("a.parquet cannot be read as parquet", path)


def test_files_of_other_widths_are_named(X, tmp_path):
    npy_folder(X, tmp_path)
    np.save(tmp_path / "part-3.npy", X[:, :5])
    refused(r"part-3.npy has 5 columns, but .*part-0.npy has 6", tmp_path)
    with pytest.raises(InputError, match=r"block 2 has 5 columns; those before it have 6"):
        as_source(lambda: iter([X, X[:, :5]]))


@pytest.mark.parametrize("make", [npy_folder, parquet_folder, arrow_dataset])
@pytest.mark.parametrize("how", ["size", "time", "gone", "cut"])
def test_a_file_that_changes_while_it_is_used_is_named(make, how, X, tmp_path):
    source = as_source(make(X, tmp_path))
    source.read(0)
    path = sorted(path for path in tmp_path.iterdir() if path.suffix in (".npy", ".parquet"))[1]
    if how == "gone":
        path.unlink()
    elif how == "time":
        os.utime(path, ns=(1, 1))
    else:
        content = path.read_bytes()
        path.write_bytes(content + b"x" if how == "size" else content[:200])
    assert len(source.read(0))
    with pytest.raises(InputError, match=rf"{path.name} (changed after|cannot be read)"):
        read_all(source)


@pytest.mark.parametrize(
    "kind", [k for k in KINDS if k is not large_blocks], ids=lambda kind: kind.__name__
)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_bad_number_is_told_by_file_row_and_block(kind, value, X, tmp_path):
    bad = X.copy()
    bad[555, 2] = value
    source = as_source(kind(bad, tmp_path))
    edges = np.cumsum([part.rows for part in source.parts])
    block = int(np.searchsorted(edges, 555, "right"))
    checked(source, block - 1)
    name, start, _ = source.parts[block]
    row = 555 - ([0, *edges][block]) + start + 1
    word = "NaN" if np.isnan(value) else "infinity"
    told = re.escape(f"{name}, row {row} (block {block + 1}): {word}; drop or repair that row")
    with pytest.raises(InputError, match=f"^{told}$"):
        checked(source, block)
    with pytest.raises(InputError, match=f"^{told}$"):
        taken(source, np.array([3, 555, 700]))


def test_numbers_too_large_to_square_are_refused_and_large_sums_are_not(X):
    huge = X.astype(np.float64)
    huge[150, 1] = -1e200
    with pytest.raises(InputError, match=r"row 151 \(block 2\): a number too large to square"):
        checked(ArraySource(huge), 1)
    wide = np.full((10, 10), 3e38, np.float32)
    assert np.array_equal(checked(ArraySource(wide), 0), wide)
    assert converted(X.astype(">f4")).dtype.isnative
    assert converted(np.eye(3, dtype=int)).dtype == np.float64


@pytest.mark.parametrize("rows", [30, 700], ids=["small groups", "big groups"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda vectors: vectors.__setitem__(555, None), "the vector is missing"),
        (lambda vectors: vectors[555].__setitem__(2, None), "a number of the vector is missing"),
        (lambda vectors: vectors[555].pop(), "a vector of 5 numbers; expected 6"),
    ],
)
def test_a_vector_that_is_not_whole_is_told_by_file_and_row(change, words, rows, X, tmp_path):
    vectors = X.tolist()
    change(vectors)
    given = pa.table({"vector": vectors})
    pq.write_table(given, tmp_path / "a.parquet", row_group_size=rows)
    for made, name in (
        (tmp_path / "a.parquet", "a.parquet"),
        (given, "the table"),
        (datasets.Dataset(given), "the dataset"),
        (pa.dataset.dataset(tmp_path), "a.parquet"),
        (pa.dataset.dataset(given), "fragment 1"),
    ):
        source = as_source(made)
        with pytest.raises(InputError, match=rf"{name}, row 556 \(block \d+\): {words}"):
            read_all(source)


def test_a_dataset_with_a_filter_is_refused_with_the_way_out(X, tmp_path):
    filtered = arrow_dataset(X, tmp_path).filter(pa.dataset.field("id") > 3)
    refused("cannot be read by its files.*write what is left", filtered)


def test_a_function_must_give_the_same_blocks_again(X):
    turns = iter([[X, X], [X], [X[:-1], X], [X, X, X], [X, X, X[:3]], [X, X]])
    source = as_source(lambda: iter(next(turns)))
    for words in ("1 blocks", r"another block 1 \(999", "another block 3", "another block 3"):
        with pytest.raises(InputError, match=f"gave {words}.*2 blocks with 2,000 rows the first"):
            read_all(source)
    assert len(read_all(source)) == 2 * N
    once = iter([X])
    source = as_source(lambda: once)
    with pytest.raises(InputError, match="gave 0 blocks when called again"):
        source.read(0)
    for given, words in (
        (lambda: iter([]), "gave no rows"),
        (lambda: iter([X[0]]), r"block 1 has shape \(6,\)"),
        (lambda: iter([X, [["a"]]]), "block 2 holds <U1"),
        (lambda: 3, "not iterable; give a function that takes no arguments"),
        (lambda n: iter([X]), "give a function that takes no arguments"),
    ):
        refused(words, given)


def test_a_function_is_called_once_per_pass(X):
    calls, blocks = [], []

    def read():
        calls.append(1)
        for start in range(0, N, 37):
            blocks.append(start)
            yield X[start : start + 37]

    source = as_source(read)
    assert source.parts[0].name == "read()"
    for _ in range(3):
        read_all(source)
    assert len(calls) == 4
    assert len(blocks) == 4 * 28
