"""The JSON that goes in and out, for checking and for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

Rate = Annotated[float, Field(gt=0.0, lt=1.0, description="false-alarm rate")]
Number = Annotated[float, Field(allow_inf_nan=False)]


def _one_of(*names: str) -> dict[str, Any]:
    """Exactly one of these properties, as JSON Schema says it."""
    return {"oneOf": [{"required": [name]} for name in names]}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)


class Part(BaseModel):
    """A part of a message; parts other than texts (images, audio) are passed over."""

    type: str
    text: str | None = None


class Message(BaseModel):
    """A turn of a conversation, in OpenAI's shape; other fields are passed over."""

    role: str
    content: str | list[Part] | None = None


class ScoreBody(_Strict):
    """What to score: exactly one of `texts`, `vectors` and `messages`."""

    model_config = ConfigDict(json_schema_extra=_one_of("texts", "vectors", "messages"))

    texts: str | Annotated[list[str], Field(min_length=1)] | None = None
    vectors: (
        Annotated[list[Number], Field(min_length=1)]
        | Annotated[list[Annotated[list[Number], Field(min_length=1)]], Field(min_length=1)]
        | None
    ) = None
    messages: (
        Annotated[list[Message], Field(min_length=1)]
        | Annotated[list[Annotated[list[Message], Field(min_length=1)]], Field(min_length=1)]
        | None
    ) = None
    model: str | None = Field(None, description="name; the first model if left out")
    fpr: Rate | None = Field(None, description="decide at this false-alarm rate, for this call")
    turns: int = Field(5, ge=1, le=20, description="user turns of a conversation that count")
    _binary: bytes | None = PrivateAttr(None)


class ExplainBody(ScoreBody):
    """The same, with how many atoms to show."""

    n_atoms: int = Field(3, ge=1, le=50)


class ThresholdBody(_Strict):
    """View (neither `fpr` nor `value`), try, or with `change` set the threshold."""

    model: str | None = None
    fpr: Rate | None = None
    value: Number | None = Field(None, description="a score, instead of a rate")
    confidence: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    change: bool = Field(False, description="keep it; needs the admin key")


class FeedbackBody(_Strict):
    """Teach the model; needs the admin key."""

    model: str | None = None
    action: Literal["refuse", "accept", "undo"]
    texts: list[str] = Field(default_factory=list, description="none for undo")


class GuardrailBody(BaseModel):
    """What LiteLLM sends to a generic guardrail; other fields are passed over."""

    input_type: Literal["request", "response"]
    texts: list[str] | None = None
    structured_messages: list[Message] | None = None
    additional_provider_specific_params: dict[str, Any] | None = None


# ---- answers


class Result(BaseModel):
    """What is said about one text, vector or conversation."""

    ood_score: float = Field(description="higher = stranger")
    p_value: float | None = Field(description="chance of an in-scope one at least this strange")
    is_ood: bool
    label: Any = Field(description='class, "out of scope", or null if there are no classes')
    nearest: list[str] = Field(description="in-scope texts most like it")
    refused_like: str | None = Field(
        None, description="the text taught to refuse for which it is out of scope"
    )
    text: str | None = Field(None, description="of a conversation: what was judged")


class Atom(BaseModel):
    """One atom's part in explaining a row."""

    atom: int
    weight: float
    share: float = Field(description="of the whole code, 0 … 1")
    rows: list[int] = Field(description="training rows behind the atom, counted from 0")
    labels: list[Any]
    texts: list[str] = Field(description="the texts of those rows, if the model is one of texts")


class ExplainedResult(Result):
    """A result with its reasons."""

    closest: Any = Field(description="class most like it, whatever the decision; null if none")
    unexplained: float | None = Field(description="share that the atoms leave, 0 … 1")
    evidence: list[Atom] = Field(description="empty if the detector gives no reasons")
    position: list[float] | None = Field(description="x and y on the map, once there is one")


class _About(BaseModel):
    model: str
    version: str = Field(description="changes whenever the model does")
    threshold: float = Field(description="score above which an input is out of scope")
    fpr: float | None = Field(description="false-alarm rate that the threshold is for")
    promise: str = Field(description="what the threshold promises, in words")


class ScoreAnswer(_About):
    """Results in the order of the request."""

    results: list[Result]


class ExplainAnswer(_About):
    """Results with reasons, in the order of the request."""

    results: list[ExplainedResult]


class ThresholdAnswer(_About):
    """A threshold: the current one, or the one asked about."""

    promised: bool = Field(description="false: an estimate")
    least_fpr: float | None = Field(description="lowest rate that can be promised")
    changed: bool
    saved: bool = Field(description="whether the model folder was written")


class FeedbackAnswer(_About):
    """The model after a change."""

    action: str
    texts: int = Field(description="how many were taught")
    warnings: list[str] = Field(description="of texts to refuse that look in scope")
    saved: bool = Field(description="whether the model folder was written")


class ModelInfo(_About):
    """A model that is served."""

    default: bool
    kind: Literal["texts", "vectors"]
    detector: str
    n_features: int
    atoms: int | None = Field(description="stored vectors, if it has any")
    labels: list[Any] | None
    promised: bool
    explains: bool = Field(description="whether evidence is given")
    learns: bool = Field(description="whether feedback is possible")
    saved: bool = Field(description="whether changes are kept in a folder")
    loaded_at: str


class Models(BaseModel):
    """All models, the default first."""

    models: list[ModelInfo]


class Points(BaseModel):
    """Points of a map, by column."""

    x: list[float]
    y: list[float]
    label: list[Any] | None = None
    text: list[str] | None = None


class Map(BaseModel):
    """The in-scope texts and the atoms in two dimensions (principal components)."""

    model: str
    version: str
    variance: list[float] = Field(description="share of the variance along x and y")
    labels: list[Any] | None = Field(description="all classes")
    texts: Points
    atoms: Points


class GuardrailAnswer(BaseModel):
    """What LiteLLM expects."""

    action: Literal["NONE", "BLOCKED", "GUARDRAIL_INTERVENED"]
    blocked_reason: str | None = None
    texts: list[str] | None = None


class Health(BaseModel):
    """Whether the service is up."""

    status: str
    models: dict[str, str] = Field(default_factory=dict)
