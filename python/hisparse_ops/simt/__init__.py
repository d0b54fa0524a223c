"""The native resolver of devices: one SIMT kernel body, launched on CUDA and on Ascend 950.

Neither library is part of the base wheel. ``make cuda-library`` and ``make ascend950`` put them beside the package;
HISPARSE_CUDA_LIBRARY and HISPARSE_ASCEND950_LIBRARY name others. What is there is registered at import.
"""

from __future__ import annotations

from collections.abc import Callable

from hisparse_ops import registry
from hisparse_ops.simt import _ascend950, _cuda

OPS = ("resolve",)
"""The ops that have a SIMT kernel."""

_STATUS: dict[str, str] = {}


def register() -> None:
    """Register what is built. Nothing is raised: ``status`` says what is missing."""
    _STATUS["cuda"] = _register_cuda()
    _STATUS["npu"] = _register_npu()


def status(backend: str) -> str:
    """Whether the SIMT kernel of a device backend is there, and if not, what is missing."""
    return _STATUS.get(backend, "no SIMT kernel is written for it")


def _register_cuda() -> str:
    file = _cuda.path()
    if not file.is_file():
        return f"not built: there is no {file}; `make cuda-library` builds it with nvcc"
    try:
        library = _cuda.Library(file)
    except (OSError, AttributeError) as error:
        return f"not usable: {error}"
    _implement(_cuda.launcher(library), "CUDA")
    return f"{file} for {library.targets()}"


def _register_npu() -> str:
    file = _ascend950.path()
    if not file.is_file():
        needs = "CANN 9.2 for Ascend 950 and torch_npu"
        return f"not built: there is no {file}; `make ascend950` builds it with {needs}"
    try:
        adapter = _ascend950.load(file)
    except (OSError, RuntimeError) as error:
        return f"not usable: {error}"
    _implement(_ascend950.launcher(adapter), "PrivateUse1")
    return str(file)


def _implement(launcher: Callable[..., None], dispatch_key: str) -> None:
    registry.LIB.impl("resolve", launcher, dispatch_key)  # type: ignore[no-untyped-call]
