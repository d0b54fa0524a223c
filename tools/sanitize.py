"""Fuzz the cores and run the op suite under sanitizers.

fuzz   the torch-free cores under AddressSanitizer and UBSan, by libFuzzer where clang++ has it, else with random
       inputs of g++
tsan   the parallel paths of the cores under ThreadSanitizer
suite  the extension built with AddressSanitizer and UBSan in a copy of the tree, under the op tests

The last line of each says what was run; any finding ends it with exit status 1.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
CORES = sorted(p for p in (ROOT / "ops").glob("*/*.cpp") if not p.stem.endswith("_cpu"))
CHECKS = ["-fno-sanitize-recover=all", "-g", "-O1", "-std=c++17", f"-I{ROOT / 'ops'}"]

# Tests that cannot run in such a process: compilers of their own, memory limits, memory counted by the page.
LEFT_OUT = (
    "graph_capture",
    "test_memory",
    "memory_that_runs_out",
    "captured",
    "spawned",
    "completeness",
)


def clang() -> str | None:
    """A clang++ that has libFuzzer."""
    for name in ("clang++", *(f"clang++-{v}" for v in range(21, 10, -1))):
        if shutil.which(name) is None:
            continue
        flags = ["-x", "c++", "-fsanitize=fuzzer", "-", "-o", "/dev/null"]
        probe = 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }'
        done = subprocess.run([name, *flags], input=probe, text=True, capture_output=True)
        if done.returncode == 0:
            return name
    return None


def build(compiler: str, source: str, out: Path, *flags: str) -> None:
    files = [str(ROOT / "tools/fuzz" / source), *map(str, CORES)]
    command = [compiler, *CHECKS, *flags, *files, "-pthread", "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{source} does not build:\n{done.stderr[-3000:]}")


def fuzz(seconds: int, folder: Path) -> int:
    binary, compiler = folder / "cores", clang()
    if compiler:
        build(compiler, "cores.cpp", binary, "-fsanitize=fuzzer,address,undefined")
        corpus = ROOT / "build/fuzz-corpus"
        corpus.mkdir(parents=True, exist_ok=True)
        command = [
            str(binary),
            f"-max_total_time={seconds}",
            "-max_len=4096",
            "-print_final_stats=1",
        ]
        command += [f"-artifact_prefix={ROOT / 'build'}/", str(corpus)]
    else:
        flags = ("-fsanitize=address,undefined", "-DHISPARSE_STANDALONE")
        build("g++", "cores.cpp", binary, *flags)
        command = [str(binary), str(seconds * 2000)]
    done = subprocess.run(command, capture_output=True, text=True)
    said = done.stdout + done.stderr
    if done.returncode:
        print(said[-6000:])
        return 1
    runs = re.search(r"number_of_executed_units: (\d+)|(\d+) executions", said)
    how = f"libFuzzer, {compiler}" if compiler else "random inputs, g++"
    print(
        f"fuzz: {(runs and (runs[1] or runs[2])) or '?'} executions in about {seconds} s ({how}), no finding"
    )
    return 0


def tsan(rounds: int, folder: Path) -> int:
    binary = folder / "parallel"
    build(clang() or "g++", "parallel.cpp", binary, "-fsanitize=thread")
    done = subprocess.run([str(binary), str(rounds)], capture_output=True, text=True)
    if done.returncode or "WARNING" in done.stderr:
        print((done.stdout + done.stderr)[-6000:])
        return 1
    print(f"tsan: {done.stdout.strip()} of 4 threads each, no finding")
    return 0


def suite(pytest_args: list[str], folder: Path) -> int:
    tree = folder / "tree"
    ignored = shutil.ignore_patterns(".git", ".venv", "build", "__pycache__", "*.so")
    shutil.copytree(ROOT, tree, ignore=ignored)
    flags = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-wrapv -O1"
    env = os.environ | {"CFLAGS": flags, "LDFLAGS": "-fsanitize=address,undefined"}
    build_command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    done = subprocess.run(build_command, cwd=tree, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the extension does not build:\n{done.stderr[-3000:]}")
    runtimes = [
        subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip()
        for name in ("libasan.so", "libubsan.so", "libstdc++.so.6")
    ]
    env = os.environ | {
        "LD_PRELOAD": " ".join(runtimes),
        # Python and torch keep what they allocate; a finding must not be lost in that.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "PYTHONPATH": str(tree / "python"),
        "PYTHONMALLOC": "malloc",
    }
    tests = [
        "tests/nightly",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        " and ".join(f"not {n}" for n in LEFT_OUT),
    ]
    command = [sys.executable, "-m", "pytest", *tests, *pytest_args]
    done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True)
    last = done.stdout.strip().splitlines()[-1:] or ["nothing"]
    if done.returncode:
        print((done.stdout + done.stderr)[-6000:])
        return 1
    print(f"asan+ubsan suite: {last[0]}, no finding")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tools/sanitize.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "what", nargs="*", choices=["fuzz", "tsan", "suite"], default=["fuzz", "tsan", "suite"]
    )
    parser.add_argument("--seconds", type=int, default=120, help="of fuzzing (%(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=2000, help="of the parallel paths (%(default)s)"
    )
    parser.add_argument("--pytest", default="", help="more arguments for the suite")
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if "fuzz" in options.what:
            failed |= fuzz(options.seconds, folder)
        if "tsan" in options.what:
            failed |= tsan(options.rounds, folder)
        if "suite" in options.what:
            failed |= suite(options.pytest.split(), folder)
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
