"""Builds the CPU kernels. Everything else about the package is in pyproject.toml."""

import os
import re
from pathlib import Path

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, include_paths

ROOT = Path(__file__).parent
VERSION = re.search(
    r'__version__ = "(.+?)"', (ROOT / "python/hisparse_ops/_version.py").read_text()
).group(1)

# Only what a torch 2.10 runtime has may be used: [major][minor][patch][tag], a byte each.
TORCH_TARGET = "0x020a000000000000ULL"

setup(
    ext_modules=[
        CppExtension(
            "hisparse_ops._C",
            sorted(
                str(p.relative_to(ROOT))
                for p in (ROOT / "ops").glob("**/*.cpp")
                if "ascend950" not in p.parts  # built by CANN, see docs/ascend950.md
            ),
            include_dirs=[str(ROOT / "ops")],
            depends=sorted(str(p.relative_to(ROOT)) for p in (ROOT / "ops").glob("**/*.h")),
            py_limited_api=True,  # torch adds -DPy_LIMITED_API for Python 3.10
            extra_compile_args={
                "cxx": [
                    "-std=c++17",
                    "-O3",
                    "-g0",
                    "-fvisibility=hidden",
                    "-fno-strict-aliasing",
                    "-Wall",
                    "-Wextra",
                    "-Wno-maybe-uninitialized",  # false alarms inside GCC 12's AVX-512 intrinsics
                    *(["-Werror"] if os.environ.get("HISPARSE_WERROR") else []),
                    # As system headers, so that the warnings above are about our code only.
                    *(f"-isystem{path}" for path in include_paths()),
                    f"-DTORCH_TARGET_VERSION={TORCH_TARGET}",
                    f'-DHISPARSE_VERSION="{VERSION}"',
                ]
            },
        )
    ],
    cmdclass={"build_ext": BuildExtension},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
