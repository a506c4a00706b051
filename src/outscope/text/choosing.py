"""From what the user calls an encoder to the encoder, and from what a model recorded of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from outscope.errors import InputError
from outscope.text.encoders import Encoder, FunctionEncoder, StaticEncoder, TransformerEncoder
from outscope.text.onnx_encoder import OnnxEncoder, is_installed
from outscope.text.remote import RemoteEncoder, is_address
from outscope.text.weights import DEFAULT

FAST, FAST_MODEL = "fast", "minishlab/potion-base-8M"
BACKENDS = ("auto", "torch", "onnx", "onnx-int8")
STATIC_MARKS = {"config.json": "model2vec", "modules.json": "StaticEmbedding"}
# Settings of a transformer that ONNX Runtime takes too.
SHARED = {"max_length", "batch_size"}


def make_encoder(encoder: Any = DEFAULT, *, backend: str = "auto", **settings: Any) -> Encoder:
    """An encoder from a name, a folder, an address, a loaded model, or any function.

    "fast" is a small static model. `backend` is what a transformer runs on: torch, onnx or
    onnx-int8; "auto" is onnx for the default encoder on a CPU where onnxruntime is installed, and
    otherwise torch.
    """
    if backend not in BACKENDS:
        raise InputError(f"backend={backend!r}: expected {', '.join(BACKENDS)}")
    if isinstance(encoder, Encoder):
        return encoder
    if isinstance(encoder, (str, Path)):
        return _named(encoder, backend, settings)
    if hasattr(encoder, "tokenizer") and hasattr(encoder, "max_seq_length"):
        _refuse_onnx(backend, "a loaded model runs on torch")
        return TransformerEncoder(encoder, **settings)
    if callable(encoder):
        _refuse_onnx(backend, "a function runs as it is")
        return FunctionEncoder(encoder)
    raise InputError(
        f"encoder of type {type(encoder).__name__} cannot encode: expected a model name, a model "
        "folder, an address, a SentenceTransformer or a function from texts to rows"
    )


def recorded_encoder(encoder: Any, settings: dict[str, Any]) -> Encoder:
    """The encoder of a saved detector, from what it recorded; without a backend, that was torch."""
    if settings.get("backend") == "remote":
        made = make_encoder(encoder)
    else:
        made = make_encoder(encoder, **{"backend": "torch", **settings})
    made.adopt(settings)
    return made


def _named(encoder: str | Path, backend: str, settings: dict[str, Any]) -> Encoder:
    name = str(encoder)
    if is_address(name):
        _refuse_onnx(backend, "it runs on its server")
        return RemoteEncoder(name, **settings)
    if name == FAST:
        name = os.environ.get("OUTSCOPE_FAST") or FAST_MODEL
    if _is_static(name):
        _refuse_onnx(backend, "a static model needs no network")
        return StaticEncoder(name)
    if backend.startswith("onnx") or (backend == "auto" and _suits_onnx(name, settings)):
        if other := sorted(settings.keys() - SHARED):
            raise InputError(f"{other[0]} is for backend='torch'; the onnx backend has no such")
        precision = "int8" if backend == "onnx-int8" else "fp32"
        return OnnxEncoder(name, precision=precision, **settings)
    return TransformerEncoder(name, **settings)


def _refuse_onnx(backend: str, why: str) -> None:
    if backend.startswith("onnx"):
        raise InputError(f"backend={backend!r} is for transformers given by name or folder; {why}")


def _suits_onnx(name: str, settings: dict[str, Any]) -> bool:
    """Whether "auto" means ONNX Runtime: for weights whose graph was checked, without a GPU."""
    device = os.environ.get("OUTSCOPE_DEVICE") or "cpu"
    gpu = sys.platform == "darwin" or Path("/dev/nvidiactl").exists()
    return (
        name in (DEFAULT, f"sentence-transformers/{DEFAULT}")
        and not Path(name).is_dir()
        and settings.keys() <= SHARED
        and device == "cpu"
        and not gpu
        and is_installed()
    )


def _is_static(name: str) -> bool:
    """Whether a model is a model2vec one, according to its configuration."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return any(
            (folder / file).is_file() and word in (folder / file).read_text("utf-8", "replace")
            for file, word in STATIC_MARKS.items()
        )
    return name.startswith("minishlab/")
