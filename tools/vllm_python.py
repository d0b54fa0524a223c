"""Unpack the Python of a vLLM wheel without its compiled parts: enough for Core on a CPU, not for a model.

python tools/vllm_python.py vllm-0.33.0-....whl FOLDER
"""

from __future__ import annotations

import argparse
import zipfile
from pathlib import Path


def unpack(wheel: Path, folder: Path) -> int:
    """Returns the number of files written."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".so" not in Path(name).suffixes]
        archive.extractall(folder, names)
    return len(names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("wheel", type=Path, help="a vLLM wheel")
    parser.add_argument("folder", type=Path, help="where to unpack it; goes on PYTHONPATH")
    arguments = parser.parse_args()
    print(f"{unpack(arguments.wheel, arguments.folder)} files in {arguments.folder}")


if __name__ == "__main__":
    main()
