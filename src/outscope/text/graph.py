"""From the files of a BERT encoder to an ONNX graph of it, with its pooling. No torch.

The graph is written from the weights, not traced: it needs no torch, does not depend on versions of
other libraries, and a model that does anything else is refused instead of being exported wrongly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy

from outscope.errors import InputError, require

# Part of every fingerprint: raised when the graph computes other bits.
EXPORTER = 1
OPSET, IR_VERSION = 18, 9
PRECISIONS = ("fp32", "int8")
# Weights that do not affect a vector.
UNUSED = ("embeddings.position_ids", "pooler.")
# Numbers that share a scale, where one scale for all would lose too much.
BLOCK = 32
# A large negative number that stays finite when two are added.
HIDDEN = -1e9

Array = np.ndarray[Any, Any]


class Shape(NamedTuple):
    """What the files of a model say about its network."""

    layers: int
    heads: int
    width: int
    epsilon: float
    pooling: str  # mean or cls
    normalised: bool
    max_length: int
    prompt: str


def read_shape(folder: Path) -> Shape:
    """The network of a model folder; an error says why one cannot be exported."""
    config = _json(folder / "config.json")
    wanted = {
        "model_type": ("bert",),
        "hidden_act": ("gelu",),
        "position_embedding_type": ("absolute", None),
        "is_decoder": (False, None),
    }
    for name, allowed in wanted.items():
        if config.get(name) not in allowed:
            raise _refused(folder, f"{name} is {config.get(name)!r}, not {allowed[0]!r}")
    pooling, normalised = _pooling(folder)
    limits = _json(folder / "sentence_bert_config.json")
    told = _json(folder / "config_sentence_transformers.json")
    prompts = told.get("prompts") or {}
    lengths = (
        limits.get("max_seq_length"),
        _json(folder / "tokenizer_config.json").get("model_max_length"),
        config["max_position_embeddings"],
    )
    if limits.get("do_lower_case"):
        raise _refused(folder, "do_lower_case is True, not False")
    return Shape(
        config["num_hidden_layers"],
        config["num_attention_heads"],
        config["hidden_size"],
        config["layer_norm_eps"],
        pooling,
        normalised,
        min(filter(None, lengths)),
        prompts.get(told.get("default_prompt_name") or "", "") or "",
    )


def _json(file: Path) -> Any:
    return json.loads(file.read_text("utf-8")) if file.is_file() else {}


def _refused(folder: Path, why: str) -> InputError:
    return InputError(
        f"the encoder in {folder} cannot run on ONNX Runtime ({why}); use backend='torch'"
    )


def _pooling(folder: Path) -> tuple[str, bool]:
    """How rows are pooled from tokens, and whether their lengths become 1."""
    if (folder / "classifier.json").is_file():
        return "mean", False  # what its head was trained on
    modules = _json(folder / "modules.json") or [{"type": "Transformer"}]
    kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    if kinds == ["Transformer"]:
        return "mean", False
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise _refused(folder, f"its modules are {', '.join(kinds)}")
    told = _json(folder / modules[1]["path"] / "config.json")
    modes = [told["pooling_mode"]] if "pooling_mode" in told else []
    names = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
    modes += [names.get(n, n) for n, on in told.items() if n.startswith("pooling_mode_") and on]
    if modes not in (["mean"], ["cls"]):
        raise _refused(folder, f"its pooling is {' and '.join(map(str, modes))}")
    return modes[0], kinds[-1] == "Normalize"


def export(folder: Path, precision: str = "fp32") -> bytes:
    """An ONNX model: token ids and mask in, one row per text out.

    In "int8", products are taken between 8-bit weights, one scale per output column, and
    activations whose 8-bit range is found anew in each call.
    """
    onnx = require("onnx", extra="onnx")
    shape = read_shape(folder)
    weights = safetensors.numpy.load_file(folder / "model.safetensors")
    weights = {name.removeprefix("bert."): value for name, value in weights.items()}
    graph = _Graph(onnx, weights, precision)
    try:
        graph.encoder(shape)
    except KeyError as error:
        raise _refused(folder, f"it has no weight {error.args[0]}") from error
    left = [n for n in weights if n not in graph.used and not n.startswith(UNUSED)]
    if left:
        raise _refused(folder, f"it has a weight {left[0]}, which is not of a plain BERT")
    model: bytes = graph.model(shape.width).SerializeToString()
    return model


class _Graph:
    """Nodes and constants, as they are added."""

    def __init__(self, onnx: Any, weights: dict[str, Array], precision: str) -> None:
        self.onnx, self.weights, self.precision = onnx, weights, precision
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self.used: set[str] = set()

    def take(self, name: str) -> Array:
        """A weight of the model, noted as used."""
        found = self.weights[name]
        self.used.add(name)
        return found.astype(np.float32)

    def constant(self, name: str, value: Any) -> str:
        if name not in self.constants:
            array = np.array(value, order="C")
            self.constants[name] = self.onnx.numpy_helper.from_array(array, name)
        return name

    def add(self, kind: str, inputs: Sequence[str], out: str, **settings: Any) -> str:
        """A node with one output."""
        made = self.onnx.helper.make_node(kind, list(inputs), [out], name=out, **settings)
        self.nodes.append(made)
        return out

    def dense(self, x: str, name: str, out: str, scale: float = 1.0, spread: bool = False) -> str:
        """Rows × weights + bias; rows are `spread` if a few of their numbers are far larger."""
        weight, bias = scale * self.take(f"{name}.weight").T, scale * self.take(f"{name}.bias")
        multiply = self._fp32
        if self.precision == "int8":
            multiply = self._int8_blocks if spread and len(weight) % BLOCK == 0 else self._int8
        return multiply(x, weight, self.constant(f"{out}.bias", bias), out)

    def _fp32(self, x: str, weight: Array, bias: str, out: str) -> str:
        product = self.add("MatMul", [x, self.constant(f"{out}.weight", weight)], f"{out}.xw")
        return self.add("Add", [product, bias], out)

    def _int8(self, x: str, weight: Array, bias: str, out: str) -> str:
        """8-bit weights, symmetric with one scale per column; activations as they come."""
        scale = np.maximum(np.abs(weight).max(axis=0), 1e-12) / np.float32(127)
        whole = np.round(weight / scale).astype(np.int8)
        parts = [f"{x}.{part}" for part in ("bits", "step", "origin")]
        if not any(parts[0] in node.output for node in self.nodes):
            self.nodes.append(self.onnx.helper.make_node("DynamicQuantizeLinear", [x], parts))
        return self.add(
            "MatMulIntegerToFloat",
            [
                parts[0],
                self.constant(f"{out}.weight", whole),
                parts[1],
                self.constant(f"{out}.scale", scale.astype(np.float32)),
                parts[2],
                "",
                bias,
            ],
            out,
            domain="com.microsoft",
        )

    def _int8_blocks(self, x: str, weight: Array, bias: str, out: str) -> str:
        """8-bit weights and activations with a scale for each block of a column or row.

        It costs little more, and one large number spoils its own block only.
        """
        depth, width = weight.shape
        blocks = weight.T.reshape(width, depth // BLOCK, BLOCK)
        scale = np.maximum(np.abs(blocks).max(axis=2), 1e-12) / np.float32(127)
        whole = (np.round(blocks / scale[:, :, None]) + 128).astype(np.uint8)
        names = [self.constant(f"{out}.weight", whole)]
        names.append(self.constant(f"{out}.scale", scale.astype(np.float32)))
        settings = {"K": depth, "N": width, "bits": 8, "block_size": BLOCK, "accuracy_level": 4}
        inputs = [x, *names, "", "", bias]
        return self.add("MatMulNBits", inputs, out, domain="com.microsoft", **settings)

    def norm(self, x: str, name: str, out: str, epsilon: float) -> str:
        """LayerNorm."""
        scale = self.constant(f"{out}.scale", self.take(f"{name}.weight"))
        bias = self.constant(f"{out}.bias", self.take(f"{name}.bias"))
        return self.add("LayerNormalization", [x, scale, bias], out, axis=-1, epsilon=epsilon)

    def encoder(self, shape: Shape) -> None:
        """The whole network."""
        mask = self.add("Cast", ["attention_mask"], "mask", to=self.onnx.TensorProto.FLOAT)
        x = self._embedded(shape)
        hidden = self.add("Sub", [mask, self.constant("one", np.float32(1))], "hidden.0")
        hidden = self.add("Mul", [hidden, self.constant("-hidden", np.float32(-HIDDEN))], "hidden")
        hidden = self.add(
            "Unsqueeze", [hidden, self.constant("axes12", np.array([1, 2]))], "hidden.4"
        )
        for i in range(shape.layers):
            x = self._block(x, hidden, f"encoder.layer.{i}", shape)
        self._pooled(x, mask, shape)

    def _embedded(self, shape: Shape) -> str:
        words = self.constant("words", self.take("embeddings.word_embeddings.weight"))
        # Every token of a single text is of type 0.
        kind = self.take("embeddings.token_type_embeddings.weight")[0]
        places = self.constant("places", self.take("embeddings.position_embeddings.weight") + kind)
        found = self.add("Gather", [words, "input_ids"], "words.found")
        length = self.add("Shape", ["input_ids"], "length", start=1, end=2)
        zero, first = self.constant("0", np.array([0])), self.constant("axis0", np.array([0]))
        here = self.add("Slice", [places, zero, length, first], "places.here")
        return self.norm(
            self.add("Add", [found, here], "embedded.0"),
            "embeddings.LayerNorm",
            "embedded",
            shape.epsilon,
        )

    def _block(self, x: str, hidden: str, name: str, shape: Shape) -> str:
        each = shape.width // shape.heads
        parts = self.constant("heads", np.array([0, 0, shape.heads, each]))
        whole = self.constant("whole", np.array([0, 0, shape.width]))

        def per_head(part: str, order: list[int], scale: float = 1.0) -> str:
            found = self.dense(x, f"{name}.attention.self.{part}", f"{name}.{part}", scale)
            found = self.add("Reshape", [found, parts], f"{found}.heads")
            return self.add("Transpose", [found], f"{found}.turned", perm=order)

        query = per_head("query", [0, 2, 1, 3], 1 / math.sqrt(each))
        key, value = per_head("key", [0, 2, 3, 1]), per_head("value", [0, 2, 1, 3])
        scores = self.add("MatMul", [query, key], f"{name}.scores.0")
        scores = self.add("Add", [scores, hidden], f"{name}.scores")
        shares = self.add("Softmax", [scores], f"{name}.shares", axis=-1)
        found = self.add("MatMul", [shares, value], f"{name}.attended.0")
        found = self.add("Transpose", [found], f"{name}.attended.1", perm=[0, 2, 1, 3])
        found = self.add("Reshape", [found, whole], f"{name}.attended")
        found = self.dense(found, f"{name}.attention.output.dense", f"{name}.mixed")
        x = self.norm(
            self.add("Add", [found, x], f"{name}.mixed.0"),
            f"{name}.attention.output.LayerNorm",
            f"{name}.between",
            shape.epsilon,
        )
        found = self._gelu(self.dense(x, f"{name}.intermediate.dense", f"{name}.wide"))
        found = self.dense(found, f"{name}.output.dense", f"{name}.narrow", spread=True)
        return self.norm(
            self.add("Add", [found, x], f"{name}.narrow.0"),
            f"{name}.output.LayerNorm",
            f"{name}.out",
            shape.epsilon,
        )

    def _gelu(self, x: str) -> str:
        return self.add("Gelu", [x], f"{x}.gelu", domain="com.microsoft")

    def _pooled(self, x: str, mask: str, shape: Shape) -> None:
        """The mean over real tokens, or the first token's row; its length becomes 1 if asked."""
        out = "pooled" if shape.normalised else "rows"
        if shape.pooling == "cls":
            self.add("Gather", [x, self.constant("first", np.array(0))], out, axis=1)
        else:
            last, middle = self.constant("last", np.array([-1])), np.array([1])
            weights = self.add("Unsqueeze", [mask, last], "weights")
            kept = self.add("Mul", [x, weights], "kept")
            total = self.add(
                "ReduceSum", [kept, self.constant("middle", middle)], "sum", keepdims=0
            )
            count = self.add("ReduceSum", [mask, last], "count", keepdims=1)
            self.add("Div", [total, count], out)
        if shape.normalised:
            self.add("LpNormalization", [out], "rows", axis=-1, p=2)

    def model(self, width: int) -> Any:
        """The finished model."""
        helper, types = self.onnx.helper, self.onnx.TensorProto
        names = ("input_ids", "attention_mask")
        inputs = [helper.make_tensor_value_info(n, types.INT64, ["texts", "tokens"]) for n in names]
        output = helper.make_tensor_value_info("rows", types.FLOAT, ["texts", width])
        graph = helper.make_graph(
            self.nodes, "encoder", inputs, [output], list(self.constants.values())
        )
        sets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=sets, ir_version=IR_VERSION)
