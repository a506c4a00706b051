"""Bodies of requests → checked items: JSON of three shapes, or rows of float32 as they are."""

from __future__ import annotations

import io
from typing import Any, NamedTuple, TypeVar

import numpy as np
from fastapi import Request
from pydantic import BaseModel, ValidationError

from outscope.errors import InputError
from outscope.serve.models import Served
from outscope.serve.openapi import BINARY
from outscope.serve.problems import Problem, invalid, too_large
from outscope.serve.settings import Settings
from outscope.serve.shapes import ScoreBody
from outscope.text.conversations import judged_text
from outscope.text.encoders import check_texts

Shape = TypeVar("Shape", bound=BaseModel)

NPY = b"\x93NUMPY"


class Asked(NamedTuple):
    """Items to score, checked."""

    kind: str  # "texts" or "vectors"
    items: Any
    conversation: bool = False  # whether the answer should say what was judged


def media_type(request: Request) -> str:
    """The type of the body, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_json(request: Request, shape: type[Shape]) -> Shape:
    """The body as a checked record. Only JSON is taken, which no page of another site can send."""
    if media_type(request) != "application/json":
        raise Problem(
            415, "unsupported-media-type", "expected a body of Content-Type: application/json"
        )
    try:
        return shape.model_validate_json(await request.body())
    except ValidationError as error:
        raise invalid(error) from None


async def read_score(request: Request, shape: type[ScoreBody]) -> ScoreBody:
    """A scoring request; with a binary body, the other fields come from the query."""
    if media_type(request) != BINARY:
        return await read_json(request, shape)
    try:
        body = shape.model_validate_strings({**request.query_params})
    except ValidationError as error:
        raise invalid(error) from None
    body._binary = await request.body()
    return body


def items_of(body: ScoreBody, served: Served, settings: Settings, *, most: int) -> Asked:
    """The items of a scoring request, within the limits and of a kind that the model takes."""
    if body._binary is not None:
        return Asked("vectors", _rows(_binary_rows(body._binary, served), served, most))
    given = [name for name in ("texts", "vectors", "messages") if getattr(body, name) is not None]
    if len(given) != 1:
        raise Problem(
            422,
            "invalid-body",
            "expected exactly one of texts, vectors and messages; "
            f"found {', '.join(given) or 'none'}",
        )
    if given == ["vectors"]:
        vectors: Any = body.vectors
        many = vectors if isinstance(vectors[0], list) else [vectors]
        return Asked("vectors", _rows(_matrix(many, served), served, most))
    if served.kind != "texts":
        raise Problem(
            422,
            "unusable-input",
            f"the model {served.name} was fitted on embeddings; send vectors of the same encoder",
        )
    if given == ["texts"]:
        texts = [body.texts] if isinstance(body.texts, str) else body.texts
        return Asked("texts", check_items(texts, settings, most))
    messages: Any = body.messages
    chats = messages if isinstance(messages[0], list) else [messages]
    judged = [judged_text(chat, body.turns) for chat in chats]
    for i, text in enumerate(judged):
        if text is None:
            raise Problem(422, "unusable-input", f"messages[{i}] has no user turn with a text")
    return Asked("texts", check_items(judged, settings, most), conversation=True)


def check_items(texts: Any, settings: Settings, most: int) -> list[str]:
    """Texts within the limits."""
    _count(len(texts), most)
    for i, text in enumerate(texts):
        if len(text) > settings.text_length:
            raise too_large(
                f"texts[{i}] has {len(text):,} characters", f"{settings.text_length:,} characters"
            )
    try:
        return check_texts(texts)
    except InputError as error:
        raise Problem(422, "unusable-input", str(error)) from None


def _count(n: int, most: int) -> None:
    if n > most:
        raise too_large(
            f"{n:,} items in one request",
            f"{most:,} (send several requests, or ask for application/x-ndjson)",
        )


def _matrix(vectors: list[list[float]], served: Served) -> Any:
    try:
        with np.errstate(over="ignore"):  # becomes infinite, which is refused
            return np.array(vectors, dtype=np.float32)
    except ValueError:
        raise _wrong_width(served, "vectors of different lengths") from None


def _binary_rows(content: bytes, served: Served) -> Any:
    """float32 rows, little-endian, one after the other; or an .npy file."""
    if content.startswith(NPY):
        try:
            return np.load(io.BytesIO(content), allow_pickle=False)
        except (ValueError, EOFError, OSError, SyntaxError) as error:
            raise Problem(422, "unusable-input", f"not a whole .npy file: {error}") from None
    width = served.width
    if not content or len(content) % (4 * width):
        raise _wrong_width(served, f"{len(content):,} bytes")
    return np.frombuffer(content, dtype="<f4").reshape(-1, width)


def _rows(rows: Any, served: Served, most: int) -> Any:
    """Rows of the right width, finite and not too many."""
    if rows.dtype.kind not in "fiu" or rows.ndim != 2 or not len(rows):
        raise Problem(
            422,
            "unusable-input",
            f"an array of shape {rows.shape} and type {rows.dtype}; expected rows of numbers",
        )
    _count(len(rows), most)
    if rows.shape[1] != served.width:
        raise _wrong_width(served, f"vectors of {rows.shape[1]} numbers")
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(rows, dtype=np.float32)
    # The sum of squares is finite only if all numbers are; large ones need the second look.
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.vdot(rows, rows)
    if not np.isfinite(squares) and not np.isfinite(rows).all():
        bad = int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
        raise Problem(
            422,
            "unusable-input",
            f"vectors[{bad}] holds NaN, infinity or a number "
            "too large for float32; expected finite numbers",
        )
    return rows


def _wrong_width(served: Served, came: str) -> Problem:
    return Problem(
        422,
        "unusable-input",
        f"{came}; the model {served.name} takes vectors of {served.width} numbers",
    )
