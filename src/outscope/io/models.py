"""Fitted estimators on disk: a manifest (JSON) and arrays (safetensors) in one folder. No pickle.

Nothing in a file is ever executed: classes are looked up by name in a table given by the caller.
"""

from __future__ import annotations

import contextlib
import filecmp
import hashlib
import json
import os
import platform
import re
import shutil
import uuid
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from sklearn.base import BaseEstimator

from outscope._parameters import CONTAMINATION, JOBS, SEED, Rule, check_parameters
from outscope.errors import InputError, ModelFileError
from outscope.io.atomic import (
    check_folder_writable,
    is_abandoned,
    is_aside,
    whole_file,
    whole_folder,
)
from outscope.io.schema import check_fitted

FORMAT = "outscope-detector"
SCHEMA = 1
MANIFEST = "manifest.json"
# Times a reader retries if a model is being replaced while it reads.
READ_AGAIN = 20
_ARRAYS = re.compile(r"arrays-[0-9a-f]{16}\.safetensors")
_ATTACHED = re.compile(r"[a-z]+-[0-9a-f]{16}")
LIBRARIES = ("outscope", "numpy", "scikit-learn", "numba", "safetensors")
# Parameters with the same meaning everywhere; classes declare others, and exceptions, in `_rules`.
SHARED_RULES = {"contamination": CONTAMINATION, "n_jobs": JOBS, "random_state": SEED}


def rules_of(kind: type[BaseEstimator]) -> dict[str, Rule]:
    """The rule for each parameter of a class."""
    return {**SHARED_RULES, **getattr(kind, "_rules", {})}


def pack(estimator: BaseEstimator) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """A fitted estimator as JSON-serialisable values and named arrays."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    return _pack(estimator, "", arrays), arrays


def _pack_estimator(
    value: BaseEstimator, path: str, arrays: dict[str, np.ndarray[Any, Any]]
) -> dict[str, Any]:
    kind = type(value)
    # Fitted attributes end with an underscore; what can be rebuilt starts with one.
    fitted = {n: v for n, v in vars(value).items() if n.endswith("_") and n[0] != "_"}
    parameters = value.get_params(deep=False)
    if not isinstance(parameters.get("random_state", 0), (int, np.integer, type(None))):
        parameters["random_state"] = None  # a generator's state is not part of a model
    for names, known, where in (
        (fitted, getattr(kind, "_fitted", {}), "_fitted"),
        (parameters, rules_of(kind), "_rules"),
    ):
        if undeclared := sorted(set(names) - set(known)):
            raise InputError(
                f"{kind.__name__}.{undeclared[0]} cannot be saved: load could not check it; "
                f"declare it in {kind.__name__}.{where}"
            )
    return {
        "$estimator": kind.__name__,
        "parameters": {
            name: _pack(item, f"{path}parameters.{name}", arrays)
            for name, item in parameters.items()
        },
        "fitted": {name: _pack(item, f"{path}{name}.", arrays) for name, item in fitted.items()},
    }


def _pack(value: Any, path: str, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    if isinstance(value, BaseEstimator):
        return _pack_estimator(value, path, arrays)
    name = path.rstrip(".")
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "UO":
            tag = "$strings" if value.dtype.kind == "U" else "$names"
            return {tag: [_text(item, name) for item in value.tolist()]}
        arrays[name] = np.ascontiguousarray(value)
        return {"$array": name}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (list, tuple)):
        return [_pack(item, f"{path}{i}.", arrays) for i, item in enumerate(value)]
    if isinstance(value, str):
        return _text(value, name)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise InputError(f"{name} of type {type(value).__name__} cannot be saved")


def _text(value: Any, name: str) -> str:
    """Check that a text can be saved."""
    if not isinstance(value, str):
        raise InputError(f"{name} holds a {type(value).__name__}, which cannot be saved")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{name} holds {value!r} with half of a surrogate pair, not a character; decode "
            "its source again as UTF-8 or UTF-16"
        ) from error
    return value


def unpack(
    value: Any,
    arrays: Mapping[str, np.ndarray[Any, Any]],
    classes: Mapping[str, type[BaseEstimator]],
) -> Any:
    """The inverse of `pack`; `classes` names every estimator that may be created.

    Only what a class declares gets through; anything else raises.
    """
    if isinstance(value, list):
        return [unpack(item, arrays, classes) for item in value]
    if type(value) is int and abs(value) >= 2**63:
        raise ValueError("a number is too large")
    if not isinstance(value, dict):
        return value
    if set(value) == {"$array"}:
        return arrays[value["$array"]]
    if set(value) == {"$strings"}:
        return np.array(_all_texts(value["$strings"]), dtype=np.str_)
    if set(value) == {"$names"}:
        return np.array(_all_texts(value["$names"]), dtype=object)
    return _unpack_estimator(value, arrays, classes)


def _unpack_estimator(
    value: dict[str, Any],
    arrays: Mapping[str, np.ndarray[Any, Any]],
    classes: Mapping[str, type[BaseEstimator]],
) -> BaseEstimator:
    if set(value) != {"$estimator", "parameters", "fitted"}:
        raise ValueError(f"an entry of unknown kind: {', '.join(sorted(value))[:60]}")
    kind = classes[value["$estimator"]]
    parts = {
        part: {name: unpack(item, arrays, classes) for name, item in value[part].items()}
        for part in ("parameters", "fitted")
    }
    # Models saved before a parameter was added have its default.
    given = parts["parameters"].keys() | getattr(kind, "_added", ())
    if given != kind().get_params(deep=False).keys():
        raise ValueError(f"{kind.__name__} has other parameters")
    estimator = kind(**parts["parameters"])
    check_parameters(estimator, {name: rules_of(kind)[name] for name in parts["parameters"]})
    if not parts["fitted"]:
        return estimator  # an estimator used as a setting is not fitted
    check_fitted(kind, parts["fitted"])
    vars(estimator).update(parts["fitted"])
    if hasattr(estimator, "prepare"):
        estimator.prepare()
    return estimator


def _all_texts(values: Any) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError("expected texts, found something else")
    return values


def write(
    path: str | os.PathLike[str],
    estimator: BaseEstimator,
    notes: dict[str, Any],
    attached: tuple[str, Mapping[str, Path]] | None = None,
) -> None:
    """Write a folder that is at all times either the complete old model or the complete new one.

    The arrays get a name that no other save uses; the manifest that points to them is moved into
    place last, atomically. `attached` is a folder of files to copy beside it, whose name must be
    derived from its contents.
    """
    folder = Path(path)
    state, arrays = pack(estimator)
    payload = safetensors.numpy.save(arrays)
    digest = hashlib.sha256(payload).hexdigest()
    manifest = {
        "format": FORMAT,
        "schema": SCHEMA,
        "score_direction": "higher_is_ood",
        **notes,
        "versions": {name: version(name) for name in LIBRARIES},
        "python": platform.python_version(),
        "arrays": f"arrays-{uuid.uuid4().hex[:16]}.safetensors",
        "arrays_sha256": digest,
        "attached": None if attached is None else attached[0],
        "state": state,
    }
    manifest["checksum"] = _checksum(manifest)
    check_target(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror or error}") from error
    replaced, left_over = _arrays_named_by(folder), _attached_to(folder)
    if attached is not None:
        _attach(folder / attached[0], attached[1])
    for name, content in ((manifest["arrays"], payload), (MANIFEST, _readable(manifest).encode())):
        with whole_file(folder / name) as file:
            file.write(content)
    _tidy(folder, replaced)
    if left_over is not None and left_over != manifest["attached"]:
        shutil.rmtree(folder / left_over, ignore_errors=True)


def check_target(path: str | os.PathLike[str]) -> None:
    """Refuse a folder that `save` cannot write to: other files in it, a file, or no access."""
    check_folder_writable(path, ours=_is_ours)


def _attached_to(folder: Path) -> str | None:
    """Name of the folder attached to the model in a folder."""
    try:
        name = json.loads((folder / MANIFEST).read_bytes())["attached"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return name if isinstance(name, str) and _ATTACHED.fullmatch(name) else None


def _attach(target: Path, files: Mapping[str, Path]) -> None:
    """Copy files into a folder that appears only once complete; a damaged one is replaced."""
    if target.is_dir() and all(
        (target / name).is_file() and filecmp.cmp(source, target / name, shallow=False)
        for name, source in files.items()
    ):
        return
    with whole_folder(target, replace=True) as aside:
        for name, source in files.items():
            (aside / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, aside / name)


def _tidy(folder: Path, replaced: str | None) -> None:
    """Remove the arrays of the model just replaced and the leftovers of interrupted saves.

    Recent files are left alone, since another save may be about to point to them.
    """
    current = _arrays_named_by(folder)
    for file in folder.glob("arrays-*.safetensors"):
        with contextlib.suppress(OSError):
            if file.name != current and (file.name == replaced or is_abandoned(file)):
                file.unlink()


def _arrays_named_by(folder: Path) -> str | None:
    """Name of the arrays that the manifest in a folder points to; None if it has none of ours."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        name = manifest["arrays"] if manifest["format"] == FORMAT else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return name if isinstance(name, str) and _ARRAYS.fullmatch(name) else None


def _is_ours(folder: Path) -> bool:
    """True for a folder that holds a model or the leftovers of an interrupted save."""
    if (folder / MANIFEST).exists():
        return _arrays_named_by(folder) is not None
    return all(
        _ARRAYS.fullmatch(file.name) or _ATTACHED.fullmatch(file.name) or is_aside(file)
        for file in folder.iterdir()
    )


def _readable(manifest: Mapping[str, Any]) -> str:
    """One entry per line: easy to read, and small for a model with many parts."""
    lines = [
        f" {json.dumps(name)}: {json.dumps(value, ensure_ascii=False, allow_nan=False)}"
        for name, value in manifest.items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _checksum(manifest: Mapping[str, Any]) -> str:
    content = {key: value for key, value in manifest.items() if key != "checksum"}
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def read_manifest(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The manifest of a saved model, verified against its checksum."""
    folder = Path(path)
    if not folder.exists():
        raise ModelFileError(f"{folder} does not exist; give the folder that save() wrote")
    file = folder / MANIFEST
    if not file.is_file():
        raise ModelFileError(f"{folder} is not an Outscope model: it has no {MANIFEST}")
    try:
        manifest = json.loads(file.read_bytes().decode())
        right = isinstance(manifest, dict) and _checksum(manifest)
    except (ValueError, OSError, RecursionError) as error:
        raise ModelFileError(f"{file} is not readable JSON; it was truncated or changed") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ModelFileError(f"{folder} is not an Outscope model: its manifest is of another kind")
    schema = manifest.get("schema")
    if type(schema) is not int or not 1 <= schema <= SCHEMA:
        raise ModelFileError(
            f"{folder} was written by another Outscope (schema {schema}, this one reads 1 to "
            f"{SCHEMA}); run: pip install -U outscope"
        )
    if manifest.get("checksum") != right:
        raise ModelFileError(f"{file} was changed after it was written (checksum differs)")
    return manifest


def read(path: str | os.PathLike[str], classes: Mapping[str, type[BaseEstimator]]) -> BaseEstimator:
    """Load an estimator of one of the given classes, or raise with one clear sentence."""
    manifest = read_manifest(path)
    payload = _payload(Path(path), manifest)
    for _ in range(READ_AGAIN):
        # A new model may have been saved between our two reads.
        if payload is not None or _arrays_named_by(Path(path)) == manifest.get("arrays"):
            break
        manifest = read_manifest(path)
        payload = _payload(Path(path), manifest)
    if payload is None:
        raise ModelFileError(
            f"{path}: the arrays are missing; copy the whole folder, not the manifest alone"
        )
    if hashlib.sha256(payload).hexdigest() != manifest.get("arrays_sha256"):
        raise ModelFileError(f"{path}: the arrays were truncated or changed after being written")
    try:
        name = manifest["state"]["$estimator"]
        known = name in classes
        arrays = safetensors.numpy.load(payload)
        if known:
            estimator: BaseEstimator = unpack(manifest["state"], arrays, classes)
            if vars(estimator).keys() == manifest["state"]["parameters"].keys():
                raise ValueError(f"{name} is not fitted")
            return estimator
    except Exception as error:  # a tampered file may fail in any way
        reason = " ".join(str(error).split())[:200]
        raise ModelFileError(
            f"{path} does not hold together ({reason or type(error).__name__}); save it again"
        ) from error
    raise ModelFileError(f"{path} holds a {name}, which this Outscope does not have")


def _payload(folder: Path, manifest: Mapping[str, Any]) -> bytes | None:
    name = manifest.get("arrays")
    if not isinstance(name, str) or not _ARRAYS.fullmatch(name):
        raise ModelFileError(f"{folder}: the manifest names no arrays in its own folder")
    try:
        return (folder / name).read_bytes() if (folder / name).is_file() else None
    except OSError:
        return None
