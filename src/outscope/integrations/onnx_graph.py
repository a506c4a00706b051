"""ONNX graphs, written down operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np

from outscope.errors import require

# What every runtime since spring 2023 understands.
OPSET, IR_VERSION = 18, 8


class Graph:
    """Nodes and constants; `op` adds a node and returns the name of its result."""

    def __init__(self, names: Iterator[int] | None = None) -> None:
        self._onnx: Any = require("onnx", extra="onnx")
        self._names = count() if names is None else names
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._numbers: dict[float, str] = {}

    def fresh(self) -> str:
        """A name that nothing else has, here or in a graph inside this one."""
        return f"v{next(self._names)}"

    def constant(self, value: Any, dtype: Any = np.float64) -> str:
        """A fixed array."""
        name = self.fresh()
        array = np.ascontiguousarray(np.asarray(value, dtype)).reshape(np.shape(value))
        self._constants.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    def number(self, value: float) -> str:
        """A float64 number, which goes with any shape."""
        if value not in self._numbers:
            self._numbers[value] = self.constant(value)
        return self._numbers[value]

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """One operation with one result."""
        return self.ops(kind, *inputs, results=1, **attributes)[0]

    def ops(self, kind: str, *inputs: str, results: int, **attributes: Any) -> list[str]:
        """One operation with several results."""
        names = [self.fresh() for _ in range(results)]
        self._nodes.append(self._onnx.helper.make_node(kind, inputs, names, **attributes))
        return names

    def total(self, value: str, axis: int, *, keep: bool = True) -> str:
        """Sum along an axis."""
        return self.op("ReduceSum", value, self.constant([axis], np.int64), keepdims=int(keep))

    def part(self, value: str, axis: int, first: int, last: int | None = None) -> str:
        """Entries first … last − 1 along an axis; all that follow if there is no last."""
        bounds = [[first], [np.iinfo(np.int64).max if last is None else last], [axis]]
        return self.op("Slice", value, *(self.constant(bound, np.int64) for bound in bounds))

    def with_axis(self, value: str, axis: int) -> str:
        """The same numbers with one more axis of length 1."""
        return self.op("Unsqueeze", value, self.constant([axis], np.int64))

    def without_axis(self, value: str, axis: int) -> str:
        """The same numbers without an axis of length 1."""
        return self.op("Squeeze", value, self.constant([axis], np.int64))

    def largest(self, value: str) -> str:
        """Maximum along axis 1, which stays."""
        return self.op("ReduceMax", value, self.constant([1], np.int64), keepdims=1)

    def double(self, value: str) -> str:
        """As float64."""
        return self.op("Cast", value, to=self._onnx.TensorProto.DOUBLE)

    def repeat(
        self, most: int, start: list[str], body: Callable[[Graph, list[str]], tuple[str, list[str]]]
    ) -> list[str]:
        """Run `body` on what it returned last, at most so often, while its first answer is true."""
        helper, types = self._onnx.helper, self._onnx.TensorProto
        inner = Graph(self._names)
        turn, before, *given = (inner.fresh() for _ in range(2 + len(start)))
        on, carried = body(inner, given)
        inputs = [
            helper.make_tensor_value_info(turn, types.INT64, []),
            helper.make_tensor_value_info(before, types.BOOL, []),
            *(helper.make_tensor_value_info(name, types.DOUBLE, None) for name in given),
        ]
        outputs = [
            helper.make_tensor_value_info(on, types.BOOL, []),
            *(helper.make_tensor_value_info(name, types.DOUBLE, None) for name in carried),
        ]
        loop = inner.finish("loop", inputs, outputs)
        first = (self.constant(most, np.int64), self.constant(True, np.bool_))
        return self.ops("Loop", *first, *start, results=len(start), body=loop)

    def finish(self, name: str, inputs: list[Any], outputs: list[Any]) -> Any:
        """The graph as ONNX has it."""
        return self._onnx.helper.make_graph(
            self._nodes, name, inputs, outputs, initializer=self._constants
        )

    def model(
        self, width: int, outputs: dict[str, tuple[str, str]], notes: dict[str, str], told: str
    ) -> Any:
        """A checked model from float32 `rows`; `outputs`: name → (result, its type)."""
        helper, types = self._onnx.helper, self._onnx.TensorProto
        infos = []
        for name, (result, kind) in outputs.items():
            self._nodes.append(helper.make_node("Identity", [result], [name]))
            infos.append(helper.make_tensor_value_info(name, getattr(types, kind), ["n"]))
        rows = helper.make_tensor_value_info("rows", types.FLOAT, ["n", width])
        model = helper.make_model(
            self.finish("outscope", [rows], infos),
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="outscope",
            doc_string=told,
        )
        helper.set_model_props(model, notes)
        self._onnx.checker.check_model(model)
        return model
