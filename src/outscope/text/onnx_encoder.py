"""The encoder on ONNX Runtime: a BERT written to a graph once, then run without torch."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outscope._types import Matrix
from outscope.engine.kernels.parallel import available_cores, for_ranges
from outscope.errors import InputError, ModelFileError, require
from outscope.io.atomic import whole_file
from outscope.text.cache import default_folder, sealed
from outscope.text.encoders import Advance, Encoder
from outscope.text.graph import EXPORTER, PRECISIONS, export, read_shape
from outscope.text.weights import DEFAULT, find_encoder, folder_fingerprint

logger = logging.getLogger("outscope")

# Texts that are tokenised and sorted by length together.
TEXTS_AT_A_TIME = 8192
NEEDED = ("onnxruntime", "onnx", "tokenizers")


def is_installed() -> bool:
    """Whether everything that the backend needs is installed; imports nothing."""
    return all(importlib.util.find_spec(name) is not None for name in NEEDED)


class OnnxEncoder(Encoder):
    """A BERT encoder (such as all-MiniLM-L6-v2) on ONNX Runtime, on the CPU, in fp32 or int8.

    Rows in fp32 differ from torch's by rounding only. In int8 the range of the activations is found
    anew in each call, so each text is a call of its own: a row never depends on the other texts.
    """

    def __init__(
        self,
        model: str | Path = DEFAULT,
        *,
        precision: str = "fp32",
        max_length: int | None = None,
        batch_size: int = 32,
        threads: int | None = None,
    ) -> None:
        if precision not in PRECISIONS:
            raise InputError(f"precision={precision!r}: expected {' or '.join(PRECISIONS)}")
        if batch_size < 1 or (max_length is not None and max_length < 1):
            raise InputError(
                f"batch_size={batch_size}, max_length={max_length}: expected at least 1 each"
            )
        self.folder = find_encoder(str(model))
        self.local = Path(model).expanduser().is_dir()
        self.name = Path(model).expanduser().resolve().name if self.local else str(model)
        self.precision, self.batch_size = precision, batch_size
        self.max_length = max_length
        self.threads = threads or available_cores()
        self._shape = read_shape(self.folder)
        self._session: Any = None
        self._tokenizer: Any = None
        self._told = False

    def fingerprint(self) -> str:
        """Hash of the model's files, of the exporter and of the settings that affect a row."""
        told = f"{folder_fingerprint(self._files)}:onnx-{EXPORTER}:{self.precision}"
        return hashlib.sha256(f"{told}:{self.max_length}".encode()).hexdigest()

    def settings(self) -> dict[str, Any]:
        """Settings that recreate this encoder from its name or folder."""
        backend = "onnx" if self.precision == "fp32" else f"onnx-{self.precision}"
        return {"backend": backend, "max_length": self.max_length, "batch_size": self.batch_size}

    @property
    def _files(self) -> Path:
        return self.folder or Path()

    def _load(self) -> Any:
        if self._session is None:
            runtime = require("onnxruntime", extra="onnx")
            options = runtime.SessionOptions()
            # Batches run side by side instead, so bits do not depend on the number of threads.
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            options.log_severity_level = 3
            self._tokenizer = self._load_tokenizer()
            self._session = runtime.InferenceSession(
                exported(self._files, self.precision), options, providers=["CPUExecutionProvider"]
            )
        return self._session

    def _load_tokenizer(self) -> Any:
        tokenizers = require("tokenizers", extra="onnx")
        file = self._files / "tokenizer.json"
        if not file.is_file():
            raise InputError(
                f"the encoder {self.name!r} has no tokenizer.json, which the onnx backend reads; "
                "use backend='torch'"
            )
        try:
            found = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare exceptions
            raise ModelFileError(f"{file} cannot be read ({error}); copy the model again") from None
        found.no_padding()
        longest = self._shape.max_length
        found.enable_truncation(min(longest, self.max_length) if self.max_length else longest)
        return found

    def _compute(self, texts: Sequence[str], kind: str, advance: Advance) -> Matrix:
        if kind != "embedding":
            way = "fine-tune it first: outscope finetune TEXTS.csv --out FOLDER"
            if (self._files / "classifier.json").is_file():
                way = "use backend='torch'"
            raise InputError(
                f"{kind} need a classifier, and {self.name} on the onnx backend is a plain "
                f"encoder; {way}"
            )
        session = self._load()
        rows = np.empty((len(texts), self._shape.width), np.float32)
        for first in range(0, len(texts), TEXTS_AT_A_TIME):
            ids = self._token_ids(texts[first : first + TEXTS_AT_A_TIME])
            batches = self._batches(ids)

            def work(start: int, stop: int, first: int = first) -> None:
                for batch in batches[start:stop]:  # noqa: B023 (work ends before the next round)
                    rows[first + np.asarray(batch)] = _run(session, [ids[i] for i in batch])  # noqa: B023
                    advance(len(batch))

            for_ranges(len(batches), self.threads, 1, work)
        return rows

    def _token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        found = self._tokenizer.encode_batch([self._shape.prompt + text.strip() for text in texts])
        cut = sum(bool(one.overflowing) for one in found)
        if cut and not self._told:
            self._told = True
            logger.warning(
                "%d of %d texts are longer than the %d tokens that the encoder reads; it does not "
                "see their ends",
                cut,
                len(found),
                self._tokenizer.truncation["max_length"],
            )
        return [one.ids for one in found]

    def _batches(self, ids: list[list[int]]) -> list[list[int]]:
        """Positions of texts of similar length, ordered so that each thread gets as much to do."""
        order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
        size = self.batch_size if self.precision == "fp32" else 1
        batches = [order[i : i + size] for i in range(0, len(order), size)]
        return [batch for part in range(self.threads) for batch in batches[part :: self.threads]]


def _run(session: Any, ids: list[list[int]]) -> Matrix:
    """Rows of texts of similar length, padded to the longest, which comes first."""
    tokens = np.zeros((len(ids), len(ids[0])), np.int64)
    mask = np.zeros_like(tokens)
    for i, one in enumerate(ids):
        tokens[i, : len(one)] = one
        mask[i, : len(one)] = 1
    found: Matrix = session.run(None, {"input_ids": tokens, "attention_mask": mask})[0]
    return found


def exported(folder: Path, precision: str) -> bytes:
    """The graph of a model folder, from a file in the user's cache, which is written if missing.

    Its name holds the hash of the model's files and a seal with the user's secret, so a file that
    was damaged, or written by others, is made again. Without a usable cache it is kept in memory.
    """
    known = f"{folder_fingerprint(folder)[:32]}-{EXPORTER}-{precision}"
    cache = default_folder() / "onnx"
    with contextlib.suppress(OSError):
        for file in cache.glob(f"{known}-*.onnx"):
            model = file.read_bytes()
            if file.name == f"{known}-{sealed(default_folder(), model)}.onnx":
                return model
            file.unlink()
    model = export(folder, precision)
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = cache / f"{known}-{sealed(default_folder(), model)}.onnx"
        with whole_file(file) as writing:
            writing.write(model)
    except (OSError, InputError) as error:
        logger.warning("the exported encoder is not kept (%s)", error)
    return model
