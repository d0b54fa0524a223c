"""Every specialisation of every kernel as machine code for CUDA cards: prints one JSON object a line.

Runs in a process of its own, in which kernels are compiled and not interpreted.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import kernels

ARCHITECTURES = (90, 100)


def compiled(op: str, variant: Any, architecture: int) -> dict[str, Any]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = list(variant.kernel.arg_names)
    types = {**variant.signature, **dict.fromkeys(variant.constants, "constexpr")}
    constants = {(names.index(name),): value for name, value in variant.constants.items()}
    found = {"op": op, "variant": variant.name, "target": f"sm_{architecture}"}
    try:
        kernel = triton.compile(
            ASTSource(variant.kernel, types, constants),
            target=GPUTarget("cuda", architecture, 32),
            options={"num_warps": 4},
        )
        return {**found, "bytes": len(kernel.asm["cubin"])}
    except Exception as error:
        return {**found, "error": f"{type(error).__name__}: {error}"}


def main() -> int:
    for op in sys.argv[1:] or kernels.names():
        for variant in kernels.variants(op):
            for architecture in ARCHITECTURES:
                print(json.dumps(compiled(op, variant, architecture)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
