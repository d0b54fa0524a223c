"""The kernels of the package, loaded without torch: this runs in the environment of triton-ascend too."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(__file__).parents[2] / "python" / "hisparse_ops" / "triton" / "kernels"
PACKAGE = "hisparse_kernels"


def load_package(folder: Path = FOLDER, package: str = PACKAGE) -> ModuleType:
    """The folder as a package of that name."""
    if package in sys.modules:
        return sys.modules[package]
    spec = importlib.util.spec_from_file_location(
        package, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[package] = module
    spec.loader.exec_module(module)
    return module


def names(folder: Path = FOLDER) -> list[str]:
    """Ops that have kernels."""
    return sorted(p.stem for p in folder.glob("*.py") if not p.stem.startswith("_"))


def variants(op: str, folder: Path = FOLDER, package: str = PACKAGE) -> tuple[Any, ...]:
    load_package(folder, package)
    found: tuple[Any, ...] = importlib.import_module(f"{package}.{op}").VARIANTS
    return found


def specialisation(spec: dict[str, Any]) -> Any:
    """A variant made of what a launcher asked for: ``op``, ``signature`` and ``constants``."""
    known = variants(spec["op"])[0]
    return type(known)(spec["key"], known.kernel, spec["signature"], spec["constants"])
