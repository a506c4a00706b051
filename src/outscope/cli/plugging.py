"""export and mcp: commands that hand a detector to other programs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from outscope.cli.show import say


def export_arguments(export: argparse.ArgumentParser) -> None:
    """Options of export."""
    export.add_argument("model", help="folder written by fit (an NNK method)")
    export.add_argument(
        "--out", required=True, type=Path, metavar="FILE", help="the .onnx file to write"
    )


def export(options: Any) -> None:
    """Write a detector's scoring of rows as an ONNX file."""
    from outscope.integrations.onnx_export import export_onnx
    from outscope.loading import load

    model: Any = load(options.model)
    export_onnx(model, options.out)
    own = getattr(model, "detector_", model)
    size = options.out.stat().st_size / 1000
    say(
        f"wrote {options.out}: {size:,.0f} kB, rows (n, {own.n_features_in_}) float32 → ood_score "
        f"(n,), is_ood (n,) above {own.threshold_:.4g}"
    )
    if own is not model:
        say(f"rows are embeddings by {model.encoder_name_}, which the file does not contain")


def mcp_arguments(mcp: argparse.ArgumentParser) -> None:
    """Options of mcp."""
    mcp.add_argument("model", help="folder written by fit, for texts")


def mcp(options: Any) -> None:
    """Serve a detector of texts to agents."""
    from outscope.integrations.mcp import server

    made = server(options.model)
    say("serving the tools score and explain on standard input and output; end with Ctrl-C")
    made.run()
