"""Imports point down the layers: read from the source, so that nothing needs to be run to break it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
MODULES = sorted(path.relative_to(SOURCE) for path in SOURCE.rglob("*.py"))

# What a layer may import from the package, besides itself. A new layer is added here, and in docs/design.md.
BELOW: dict[str, set[str]] = {
    "errors": set(),
    "kernels": {"errors"},
    "codecs": {"errors", "kernels"},
    "methods": {"errors", "kernels", "codecs"},
    "exchange": {"errors"},
    "perf": {"errors", "kernels", "codecs", "methods", "exchange"},
    "ddp": {"errors", "kernels", "codecs", "methods", "exchange", "perf"},
    "virtual": {"errors", "kernels", "codecs", "methods", "exchange", "ddp"},
    "__init__": {"errors", "kernels", "codecs", "methods", "exchange", "ddp", "virtual", "perf"},
    # From here on a layer sees the package as its users do: what is public, and its errors.
    "recipes": {"errors"},
    "lab": {"errors"},
    "train": {"errors", "recipes", "lab"},
    "report": {"errors", "train"},
    "cli": {"errors", "recipes", "lab", "train", "report", "perf"},
    "__main__": {"cli"},
}
NO_DISTRIBUTED = {"errors", "kernels", "codecs", "methods"}  # these must not know that there are others
ABOVE_ALL = {"experiments", "benchmarks", "examples", "tests"}


def layer_of(module: Path) -> str:
    """The part below `terngrad` that a file or a dotted name, split at its dots, belongs to."""
    parts = module.with_suffix("").parts
    return parts[1] if len(parts) > 1 else "__init__"


def imports_of(module: Path) -> Iterator[str]:
    """Absolute dotted names, wherever in the file they are imported; `from a import b` gives a.b."""
    package = module.parent.parts
    for node in ast.walk(ast.parse((SOURCE / module).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) + 1 - node.level] if node.level else ()
            base = ".".join([*start, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def imported_layers(module: Path) -> set[str]:
    """The layers of the package that a module imports from."""
    found = {name.split(".")[1] for name in imports_of(module) if name.startswith("terngrad.")}
    return found & ({path.stem for path in (SOURCE / "terngrad").iterdir()} | set(BELOW))


everywhere = pytest.mark.parametrize("module", MODULES, ids=str)


@everywhere
def test_every_module_belongs_to_a_layer(module: Path) -> None:
    assert layer_of(module) in BELOW


@everywhere
def test_imports_point_down(module: Path) -> None:
    layer = layer_of(module)
    above = imported_layers(module) - BELOW[layer] - {layer}
    assert not above, f"{layer} must not know {', '.join(sorted(above))}"


@everywhere
def test_nothing_imports_what_stands_on_the_package(module: Path) -> None:
    assert not {name.split(".")[0] for name in imports_of(module)} & ABOVE_ALL


@everywhere
def test_lower_layers_know_nothing_of_other_ranks(module: Path) -> None:
    names = set(imports_of(module))
    touched = {name for name in names if name.startswith(("torch.distributed", "torch.nn.parallel"))}
    assert layer_of(module) not in NO_DISTRIBUTED or not touched


def defines_a_hook(module: Path) -> bool:
    """Whether it has a function (state, bucket), which DDP inspects when it is registered."""
    tree = ast.parse((SOURCE / module).read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return any([argument.arg for argument in function.args.args] == ["state", "bucket"] for function in functions)


def test_modules_with_a_hook_have_no_postponed_annotations() -> None:
    """DDP compares the annotation of `bucket` with a class, and a postponed one is a string."""
    hooks = [module for module in MODULES if defines_a_hook(module)]
    assert hooks
    assert {layer_of(module) for module in hooks} == {"ddp"}
    for module in hooks:
        assert "__future__.annotations" not in set(imports_of(module)), module


def test_the_layers_read_here_are_those_that_exist() -> None:
    assert {layer_of(module) for module in MODULES} >= {"errors", "kernels", "codecs", "methods", "exchange", "ddp"}
    assert "kernels" in imported_layers(Path("terngrad/codecs/frame.py"))
    assert imported_layers(Path("terngrad/ddp/__init__.py"))
