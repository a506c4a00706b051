"""The options that say which encoder turns texts into rows, shared by commands."""

from __future__ import annotations

import argparse
from typing import Any

from outscope.errors import InputError

REMOTE = {"encoder_model": "model", "key_env": "key_env", "per_minute": "per_minute"}


def encoder_arguments(command: argparse.ArgumentParser) -> None:
    """Options that choose an encoder."""
    chosen = command.add_argument_group("encoder (texts)")
    chosen.add_argument(
        "--encoder",
        metavar="NAME",
        help="a name, a folder, fast (a small static model) or https://host/v1/embeddings",
    )
    chosen.add_argument(
        "--backend",
        default="auto",
        metavar="NAME",
        help="what a transformer runs on: torch, onnx or onnx-int8 (default auto: onnx for the "
        "default encoder on a CPU, where onnxruntime is installed; otherwise torch)",
    )
    chosen.add_argument("--encoder-model", metavar="NAME", help="model of a remote encoder")
    chosen.add_argument(
        "--key-env", metavar="VARIABLE", help="environment variable with the key for it"
    )
    chosen.add_argument(
        "--per-minute", type=float, metavar="N", help="requests to it per minute (default: any)"
    )


def chosen_encoder(options: Any, **settings: Any) -> Any:
    """The encoder that the options name."""
    from outscope.text.choosing import make_encoder
    from outscope.text.remote import is_address
    from outscope.text.weights import DEFAULT

    name = DEFAULT if options.encoder is None else options.encoder
    remote = {REMOTE[n]: getattr(options, n) for n in REMOTE if getattr(options, n) is not None}
    if remote and not is_address(name):
        option = next(n for n in REMOTE if getattr(options, n) is not None)
        raise InputError(
            f"--{option.replace('_', '-')} is for a remote encoder; give --encoder https://…"
        )
    return make_encoder(name, backend=options.backend, **remote, **settings)
