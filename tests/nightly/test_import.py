"""What importing the package does in a fresh process."""

from __future__ import annotations

import subprocess
import sys


def test_finds_its_kernels_without_torch_imported_first() -> None:
    program = (
        "import sys, hisparse_ops\n"
        "cpu = hisparse_ops.backends()['cpu']\n"
        "sys.exit(0 if cpu.ops else cpu.reason)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
