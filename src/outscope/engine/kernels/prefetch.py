"""Asking for memory before it is needed."""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic


@intrinsic
def prefetch(_typing, matrix, row, column):  # type: ignore[no-untyped-def]
    """Have the processor fetch an entry; nothing waits for it, and no result changes."""
    signature = types.void(matrix, row, column)

    def codegen(context, builder, signature, given):  # type: ignore[no-untyped-def]
        kind, *whole = signature.args
        there = context.make_array(kind)(context, builder, given[0])
        places = [
            context.cast(builder, place, number, types.intp)
            for place, number in zip(given[1:], whole, strict=True)
        ]
        entry = cgutils.get_item_pointer(context, builder, kind, there, places, wraparound=False)  # type: ignore[no-untyped-call]
        address = builder.bitcast(entry, cgutils.voidptr_t)
        number = ir.IntType(32)
        function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module,
            ir.FunctionType(ir.VoidType(), [address.type, number, number, number]),
            "llvm.prefetch.p0",
        )
        # To be read, into the nearest cache, as data.
        builder.call(function, [address, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return signature, codegen
