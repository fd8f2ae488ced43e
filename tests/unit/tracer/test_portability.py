"""What runs inside the job's own Python: 3.9 grammar, standard library and torch only."""

import ast
import sys
from pathlib import Path

import pytest

import magneton_dist

ROOT = Path(magneton_dist.__file__).parent
FILES = [
    ROOT / "__init__.py",
    ROOT / "errors.py",
    *sorted((ROOT / "tracer").rglob("*.py")),
    *sorted((ROOT / "sync").rglob("*.py")),
]
OURS = ("magneton_dist.errors", "magneton_dist.tracer", "magneton_dist.sync")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_grammar_and_imports(path: Path):
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(node.module or "")
    for name in imported:
        assert name.startswith(OURS) or name.partition(".")[0] in {*sys.stdlib_module_names, "torch"}, name


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_union_of_types_is_evaluated(path: Path):
    """`X | None` is fine in annotations, which stay text; evaluated, Python 3.9 would raise."""
    tree = ast.parse(path.read_text())
    annotations = set()
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):
            part = getattr(node, field, None)
            if part is not None:
                annotations |= {id(inner) for inner in ast.walk(part)}
    unions = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.BitOr)
        and id(node) not in annotations
        and any(isinstance(side, ast.Constant) and side.value is None for side in (node.left, node.right))
    ]
    assert unions == []
    if annotations and any(isinstance(node, ast.BinOp) for node in ast.walk(tree)):
        names = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
        assert "annotations" in names
