"""Model Context Protocol: a server with the tools `score` and `explain`."""

from __future__ import annotations

import os
from typing import Any

from outscope.errors import InputError, require
from outscope.integrations.judging import explain as explanation
from outscope.integrations.judging import judge, text_detector
from outscope.text.pipeline import TextDetector

# More texts in one call than any model writes by hand.
MOST_TEXTS = 1000
INSTRUCTIONS = "Tells whether texts are in scope: like those that the detector was fitted on."


def server(detector: TextDetector | str | os.PathLike[str]) -> Any:
    """An `MCPServer` for a fitted `TextDetector` or the folder of one; `run()` serves stdio."""
    sdk, found = require("mcp.server.mcpserver", extra="mcp"), text_detector(detector)

    def score(texts: list[str]) -> dict[str, Any]:
        """Judge texts: ood_score (higher = stranger), is_ood, p_value, class, nearest texts."""
        if not 1 <= len(texts) <= MOST_TEXTS:
            raise sdk.exceptions.ToolError(
                f"texts has {len(texts)} texts; give 1 to {MOST_TEXTS} in a call"
            )
        return {"results": judge(found, texts)}

    def explain(text: str, n_atoms: int = 3) -> dict[str, Any]:
        """Say which in-scope texts explain a text's score, and how much stays unexplained."""
        try:
            return explanation(found, text, n_atoms)
        except InputError as error:  # in words that reach the agent
            raise sdk.exceptions.ToolError(str(error)) from error

    made = sdk.MCPServer("outscope", instructions=INSTRUCTIONS, log_level="WARNING")
    made.add_tool(score)
    made.add_tool(explain)
    return made
