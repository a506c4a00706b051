"""Examples in modules that stand behind extras are run where the library is there."""

from importlib.util import find_spec

LIBRARIES = {
    "agents": "agents",
    "guardrails": "guardrails",
    "langchain": "langchain_core",
    "mcp": "mcp",
    "pyod": "pyod",
}
collect_ignore = [
    f"outscope/integrations/{module}.py"
    for module, library in LIBRARIES.items()
    if find_spec(library) is None
]
