"""The house stays in order: sizes, names, documents."""

from __future__ import annotations

import ast
import re

import pytest
from conftest import ROOT

import outscope
from outscope.cli import COMMANDS

SOURCES = sorted((ROOT / "src" / "outscope").rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_files_and_functions_stay_small(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    longest = 95 if "kernels" in path.parts else 60
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            body = node.end_lineno - node.body[0].lineno + 1
            assert body <= longest, f"{path.name}: {node.name} has {body} lines"


def test_every_public_name_has_a_docstring_and_is_in_the_reference():
    reference = (ROOT / "README.md").read_text() + (ROOT / "ARCHITECTURE.md").read_text()
    for name in outscope.__all__:
        assert getattr(outscope, name).__doc__
        if name.endswith("Detector") and name != "Detector":
            assert re.search(rf"\b{name}\b", reference), name


def test_every_module_is_on_the_map_on_its_floor():
    floor, named = "", set()
    for row in re.findall(r"^\| .*", (ROOT / "ARCHITECTURE.md").read_text(), re.M):
        floor = row.split("|")[1].strip(" `") or floor
        named |= {(floor, name) for name in re.findall(r"`(\w+)`", row)}
    for path in SOURCES:
        *folders, name = path.relative_to(ROOT / "src").with_suffix("").parts
        if name not in ("__init__", "__main__"):
            floor = ".".join(folders[1:]) or "outscope"
            assert (floor, name) in named, f"{floor}: {name} is not in ARCHITECTURE.md"


def test_every_command_is_in_the_readme():
    text = (ROOT / "README.md").read_text()
    for command in COMMANDS:
        assert re.search(rf"outscope {command}\b", text), command


def test_documents_keep_their_length():
    for name, lines in (("README.md", 160), ("ARCHITECTURE.md", 90), ("CONTRIBUTING.md", 80)):
        assert len((ROOT / name).read_text().splitlines()) <= lines, name


def test_versions_agree():
    assert f'version = "{outscope.__version__}"' in (ROOT / "pyproject.toml").read_text()
