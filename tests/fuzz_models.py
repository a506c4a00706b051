"""Saved models, tampered with and signed again: loading refuses them or they score. Run as a script.

A crash of the interpreter is what this looks for, so it runs in a process of its own.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import safetensors.numpy
from conftest import public_detectors

import outscope
from outscope.io.models import MANIFEST, _checksum

NUMBERS = [
    0,
    1,
    -1,
    2,
    3,
    7,
    23,
    24,
    25,
    2**31,
    2**62,
    2**63,
    10**30,
    -(2**63),
    0.0,
    -0.0,
    0.5,
    -1.5,
]
NUMBERS += [1e-320, 1e16, 1e155, 1e308, -1e308, float("nan"), float("inf"), -float("inf")]
ODD = [None, True, False, "", "auto", "cosine", "int4", "int8", "float32", "\ud800", [], {}, [[]]]
ODD += [{"$array": "atoms_"}, {"$strings": ["a", "b"]}, {"$names": ["a"]}, {"$strings": [1]}]
TYPES = [np.float32, np.float64, np.float16, np.int64, np.int32, np.int8, np.uint8, np.uint16, bool]


def settings(kind):
    """A few ways to make a detector of a class: each leaves other attributes behind."""
    yield {}
    if issubclass(kind, outscope.NNKDetector):
        yield {"precision": "int8", "n_atoms": 9}
        yield {"precision": "int4", "kernel": "cosine", "update": "mod", "normalize": False}


def make(kind, changes, rows, labels, streams=False):
    made = kind(**changes)
    if "random_state" in made.get_params():
        made.set_params(random_state=0)
    if streams:
        made.partial_fit(rows[:30], labels[:30]).partial_fit(rows[18:], labels[18:])
    else:
        made.fit(rows, labels)
    return made.calibrate(rows[::2] + 0.01)


def places(value, path=()):
    """Every place in a JSON value."""
    yield path
    if not isinstance(value, (dict, list)):
        return
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield from places(item, (*path, key))


def at(value, path):
    for key in path:
        value = value[key]
    return value


def change_value(rng, state):
    """Change, remove, copy or move one value of a state."""
    spots = [path for path in places(state) if path]
    path = rng.choice(spots)
    parent, key = at(state, path[:-1]), path[-1]
    how = rng.randrange(7)
    if how < 3:
        parent[key] = copy.deepcopy(rng.choice([*NUMBERS, *ODD]))
    elif how == 3:
        parent[key] = copy.deepcopy(at(state, rng.choice(spots)))
    elif how == 4:
        del parent[key]
    elif how == 5 and isinstance(parent, dict):
        parent[rng.choice(["bananas", "$array", "common_"])] = copy.deepcopy(parent[key])
    elif type(parent[key]) in (int, float):
        parent[key] = parent[key] * rng.choice([-1, 2, 10**6, 0.5]) + rng.choice([0, 1, -1])
    else:
        for _ in range(rng.choice([2, 50, 200])):
            parent[key] = [parent[key]]


def change_array(rng, arrays):
    """Change the values, type or shape of one array."""
    name = rng.choice(sorted(arrays))
    array = arrays[name].copy()
    how = rng.randrange(7)
    with np.errstate(all="ignore"):
        if how < 3 and array.size:
            array.reshape(-1)[rng.randrange(array.size)] = np.array(
                rng.choice([n for n in NUMBERS if abs(n) < 2**63 or n != n])
            ).astype(array.dtype)
        elif how == 3:
            array = array.astype(rng.choice(TYPES))
        elif how == 4:
            shape = [(array.size,), (1, *array.shape), array.shape[::-1], (array.size, 1)]
            array = array.reshape(rng.choice(shape))
        elif how == 5:
            array = array[: rng.randrange(len(array) + 1)]
        else:
            array = np.concatenate([array, array[..., -1:]], axis=-1)
    arrays[name] = np.ascontiguousarray(array)
    if rng.random() < 0.1:
        arrays[rng.choice(sorted(arrays))] = arrays[name]


def write_signed(folder, manifest, arrays):
    payload = safetensors.numpy.save(arrays)
    (folder / manifest["arrays"]).write_bytes(payload)
    manifest["arrays_sha256"] = hashlib.sha256(payload).hexdigest()
    text = json.dumps(manifest)
    try:
        manifest["checksum"] = _checksum(json.loads(text))
        text = json.dumps(manifest)
    except ValueError:
        pass
    (folder / MANIFEST).write_text(text)


def fuzz(folder, rows, n, rng):
    """Try n changes of a saved model; count those that load."""
    manifest = json.loads((folder / MANIFEST).read_text())
    arrays = safetensors.numpy.load((folder / manifest["arrays"]).read_bytes())
    loaded = 0
    for _ in range(n):
        changed, others = copy.deepcopy(manifest), dict(arrays)
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            if others and rng.random() < 0.5:
                change_array(rng, others)
            else:
                change_value(rng, changed["state"])
        write_signed(folder, changed, others)
        try:
            found = outscope.load(folder)
        except outscope.ModelFileError:
            continue
        loaded += 1
        try:
            found.predict(rows)
            if "stream_" in vars(found):
                learn_on(copy.deepcopy(found), rows)
            if hasattr(found, "p_value"):
                found.p_value(rows)
            if hasattr(found, "explain"):
                found.explain(rows)
                found.nearest_rows(rows, 2)
        except (outscope.OutscopeError, ValueError):
            pass
    return loaded


def learn_on(found, rows):
    """Go on with rows that have labels or not, as the stream says."""
    known = getattr(found, "classes_", getattr(found, "labels_", None))
    labels = None
    if found.stream_.labelled_ and known is not None:
        labels = np.resize(known, len(rows))
    found.partial_fit(rows, labels)


def main(total):
    warnings.simplefilter("ignore")
    rng = random.Random(0)
    draw = np.random.default_rng(0)
    labels = np.repeat(["a", "b"], 24)
    rows = (np.repeat(np.eye(2, 7) * 9, 24, axis=0) + draw.normal(size=(48, 7))).astype(np.float32)
    tight = (np.repeat(np.eye(2, 7), 24, axis=0) + 0.02 * draw.normal(size=(48, 7))).astype("f4")
    cases = [
        (kind, changes, data)
        for kind in public_detectors()
        for changes in settings(kind)
        for data in ((rows, tight) if issubclass(kind, outscope.NNKDetector) else (rows,))
    ]
    each, loaded = -(-total // len(cases)), 0
    for kind, changes, data in cases:
        with tempfile.TemporaryDirectory() as folder:
            streams = hasattr(kind, "partial_fit") and rng.random() < 0.5
            made = make(kind, changes, data, labels, streams)
            made.save(folder)
            loaded += fuzz(Path(folder), data[:3], each, rng)
    print(f"{each * len(cases)} cases, {loaded} of them loaded")


if __name__ == "__main__":
    main(int(sys.argv[1]))
