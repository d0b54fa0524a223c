"""``plan``: counts against hand computation, vLLM's figures and a published experiment; the command; its page."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from expecttest import assert_expected_inline
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse_ops.__main__ import main
from hisparse_ops._cli import UsageError
from hisparse_ops.plan import memory, models, refill, report

ROOT = Path(__file__).parents[2]
GIB = 2**30
GLM, DEEPSEEK = models.BUILT_IN["GLM-5.2"], models.BUILT_IN["DeepSeek-V3.2"]
LINK = refill.Link(37e9, 0.05)

# The deployment of vllm-ascend's pull request 20926.
PUBLISHED = memory.Setup(
    model=GLM,
    device_bytes=int(20.5 * GIB),
    host_bytes=64 * GIB,
    kv="c8",
    indexer="c8",
    tp=8,
    mtp=3,
    hot_size=10240,
    block_size=128,
    context=32768,
    output=8192,
    max_seqs=32,
    batched_tokens=8192,
    batches_in_flight=2,
    shared_host=False,
)
PUBLISHED_OPTIONS = [
    *("--device-kv-gib", "20.5", "--host-pool-gib", "64", "--tp", "8", "--mtp", "3"),
    *("--hot-size", "10240", "--max-seqs", "32"),
]


def plans(setup: memory.Setup) -> tuple[memory.Off, memory.On]:
    layout = memory.lay_out(setup)
    return memory.plan_off(setup, layout), memory.plan_on(setup, layout)


# Models


@pytest.mark.parametrize(
    ("name", "kv", "indexer", "mtp", "main", "index"),
    [
        ("GLM-5.2", "bf16", "bf16", 0, 78 * 1152, 21 * 256),
        ("GLM-5.2", "c8", "c8", 0, 51168, 2772),
        ("GLM-5.2", "c8", "c8", 3, 51824, 2904),
        ("GLM-5.2", "c8", "bf16", 1, 51824, 5632),
        ("GLM-5.3", "bf16", "c8", 1, 91008, 2904),
        ("DeepSeek-V3.2", "bf16", "bf16", 0, 70272, 15616),
        ("DeepSeek-V3.2", "c8", "c8", 0, 40016, 8052),
        ("DeepSeek-V3.2", "bf16", "c8", 2, 71424, 8184),
        ("DeepSeek-V3.2", "c8", "bf16", 2, 40672, 15872),
    ],
)
def test_bytes_of_a_token(
    name: str, kv: str, indexer: str, mtp: int, main: int, index: int
) -> None:
    setup = replace(PUBLISHED, model=models.BUILT_IN[name], kv=kv, indexer=indexer, mtp=mtp)
    layout = memory.lay_out(setup)
    assert layout.main_row * layout.layers == main
    assert layout.index_row * layout.index_layers == index
    assert layout.off_block == 128 * (main + index)
    assert layout.host_block == 128 * main


def test_index_groups() -> None:
    assert GLM.index_groups(0) == [1, 1, *[4] * 19]
    assert GLM.index_groups(3) == [1, 1, *[4] * 19, 1]
    assert DEEPSEEK.index_groups(0) == [1] * 61
    assert DEEPSEEK.index_groups(1) == [1] * 62
    # A layer before the first indexer has nobody to follow, and leads.
    assert replace(GLM, indexers=(False, False, True)).index_groups(0) == [2, 1]


HF = {
    "glm_moe_dsa": {
        "num_hidden_layers": 78,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "index_head_dim": 128,
        "index_topk": 2048,
        "index_topk_freq": 4,
        "index_skip_topk_offset": 3,
        "num_nextn_predict_layers": 1,
        "max_position_embeddings": 1048576,
    },
    "deepseek_v32": {
        "num_hidden_layers": 61,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "index_head_dim": 128,
        "index_topk": 2048,
        "num_nextn_predict_layers": 1,
        "max_position_embeddings": 163840,
    },
}


@pytest.mark.parametrize(("kind", "model"), [("glm_moe_dsa", GLM), ("deepseek_v32", DEEPSEEK)])
def test_config_json_of_a_built_in_model(kind: str, model: models.Model, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **HF[kind]}))
    for name in (tmp_path, tmp_path / "config.json"):
        assert models.find(str(name)) == replace(model, name=kind)


def test_schedules_of_a_config() -> None:
    config: dict[str, Any] = {**HF["glm_moe_dsa"], "num_hidden_layers": 5}
    listed = {**config, "indexer_types": ["full", "shared", "full", "full", "shared"]}
    assert models.from_config(listed, "x").index_groups(0) == [2, 1, 2]
    pattern = {**config, "index_topk_pattern": "FSSFS"}
    assert models.from_config(pattern, "x").index_groups(0) == [3, 2]
    # The list is what the checkpoint has; the rest may be what a converter left behind.
    assert models.from_config({**pattern, **listed}, "x").index_groups(0) == [2, 1, 2]
    nothing = {k: v for k, v in config.items() if not k.startswith("index_topk_")}
    assert models.from_config(nothing, "x").index_groups(0) == [1] * 5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"index_topk": None, "model_type": "llama"},
            "c.json: not a DSA model (model_type llama): it has no index_topk",
        ),
        (
            {"kv_lora_rank": None, "num_hidden_layers": None, "index_head_dim": None},
            "c.json: it has no num_hidden_layers, kv_lora_rank, index_head_dim",
        ),
        ({"index_topk": 0}, "c.json: index_topk must be an integer, at least 1, got 0"),
        ({"kv_lora_rank": "512"}, "c.json: kv_lora_rank must be an integer, at least 1, got '512'"),
        (
            {"num_hidden_layers": True},
            "c.json: num_hidden_layers must be an integer, at least 1, got True",
        ),
        ({"index_topk_freq": 0}, "c.json: index_topk_freq must be an integer, at least 1, got 0"),
        (
            {"indexer_types": ["full"]},
            "c.json: indexer_types must have full or shared for each of the 78 layers, got ['full']",
        ),
        (
            {"index_topk_pattern": "FX" * 39},
            "c.json: index_topk_pattern must have F or S for each of the 78 layers, got FXFX",
        ),
        (
            {"model_type": "deepseek_v4"},
            "c.json: model_type deepseek_v4 cannot be planned: its cache",
        ),
    ],
)
def test_wrong_configs_say_what_is_wrong(change: dict[str, Any], words: str) -> None:
    config = {**HF["glm_moe_dsa"], **change}
    with pytest.raises(UsageError) as raised:
        models.from_config({k: v for k, v in config.items() if v is not None}, "c.json")
    assert str(raised.value).startswith(words)


@pytest.mark.parametrize(
    ("text", "words"), [("{", "not a JSON file ("), ("[1]", "must be a JSON object, got list")]
)
def test_files_that_are_no_config(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=re.escape(f"{file}: {words}")):
        models.find(str(file))


# Counts

# What vLLM 0.32.0 itself computes for 40 GiB of device KV, 200 GiB of host pool, hot size 10240 and chunks of 8192:
# layers of the hot groups, device and host blocks, get_hisparse_steady_state_concurrency, and blocks OFF.
VLLM = [
    (("GLM-5.2", "c8", "c8", 3, 128, 1, 32768, 8192), ((2, *[4] * 19, 1), 102300, 32373, 49.460333, 6131)),
    (("GLM-5.2", "c8", "bf16", 3, 128, 2, 32768, 8192), ((6, *[8] * 9, 1), 56833, 32373, 45.373977, 5840)),
    (("GLM-5.2", "bf16", "c8", 0, 64, 2, 120000, 8000), ((2, *[4] * 19), 145635, 37342, 18.671, 7244)),
    (("GLM-5.2", "bf16", "bf16", 3, 128, 2, 4096, 1024), ((2, *[4] * 19, 1), 58254, 18434, 32.6084, 3472)),
    (("DeepSeek-V3.2", "c8", "c8", 1, 64, 2, 32768, 8192), ((*[12] * 5, 2), 78692, 82500, 47.870968, 13736)),
    (("DeepSeek-V3.2", "c8", "bf16", 0, 128, 1, 120000, 8000), ((23, 23, 15), 21312, 41926, 16.955056, 6031)),
    (("DeepSeek-V3.2", "bf16", "bf16", 1, 128, 2, 4096, 1024), ((*[13] * 4, 10), 20805, 23489, 45.811111, 3843)),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "expected"), VLLM)
def test_layout_is_that_of_vllm(asked: Any, expected: Any) -> None:
    name, kv, indexer, mtp, block_size, batches, context, output = asked
    setup = replace(
        PUBLISHED,
        model=models.BUILT_IN[name],
        device_bytes=40 * GIB,
        host_bytes=200 * GIB,
        kv=kv,
        indexer=indexer,
        mtp=mtp,
        block_size=block_size,
        batches_in_flight=batches,
        context=context,
        output=output,
    )
    off, on = plans(setup)
    found = (memory.lay_out(setup).cache_groups, on.blocks, on.host_blocks, round(on.startup, 6))
    assert (*found, off.blocks) == expected


@pytest.mark.parametrize(
    ("change", "off_steady", "admission", "prefill", "steady"),
    [
        ({}, 9, 26, 25, 25),
        ({"device_bytes": int(20.45 * GIB)}, 9, 25, 25, 25),
        ({"device_bytes": int(20.73 * GIB)}, 9, 26, 25, 25),
        ({"batches_in_flight": 1}, 9, 26, 25, 25),
        ({"indexer": "bf16"}, 9, 24, 23, 23),
        ({"block_size": 64}, 9, 26, 25, 25),
    ],
)
def test_published_experiment(
    change: dict[str, Any], off_steady: int, admission: int, prefill: int, steady: int
) -> None:
    """OFF 9 and ON 25 without a preemption, 10 and 26 with; the changes are what it does not state."""
    off, on = plans(replace(PUBLISHED, **change))
    assert (off.steady, on.admission, on.prefill, on.steady) == (
        off_steady,
        admission,
        prefill,
        steady,
    )
    assert off.admission >= 10 > off.concurrency == off_steady
    row = f"| {off_steady} | {admission} | {prefill} | {steady} |"
    assert row in (ROOT / "docs/plan.md").read_text()


def test_published_single_request() -> None:
    off, on = plans(replace(PUBLISHED, context=1040384))
    assert (off.concurrency, on.concurrency, on.limit) == (0, 1, "host_pool")
    assert on.host_blocks == 10359


def test_every_limit_can_be_the_one() -> None:
    limits = {
        "hot_buffers": {},
        "host_pool": {"host_bytes": 20 * GIB},
        "max_seqs": {"max_seqs": 3},
        "indexer_cache": {"context": 300000, "host_bytes": None},
        "device_blocks": {"context": 2000, "output": 1000},
        "prefill": {"hot_size": 8192, "indexer": "bf16", "output": 1000},
    }
    for limit, change in limits.items():
        setup = replace(PUBLISHED, **{"max_seqs": None, **change})
        assert plans(setup)[1].limit == limit
    assert plans(replace(PUBLISHED, max_seqs=3))[0].limit == "max_seqs"
    assert plans(PUBLISHED)[0].limit == "device_blocks"


def test_a_shared_pool_has_whole_system_pages() -> None:
    setup = replace(PUBLISHED, block_size=5)
    private, shared = (memory.lay_out(replace(setup, shared_host=s)).host_block for s in (0, 1))
    assert private == 5 * 79 * 656 and shared == 64 * 4096


def test_nothing_fits() -> None:
    off, on = plans(replace(PUBLISHED, device_bytes=0, host_bytes=0))
    assert (off.concurrency, on.concurrency, on.admission, on.prefill) == (0, 0, 0, 0)
    assert on.limit == "hot_buffers" and on.startup == 0
    # vLLM wants one block to spare.
    block, pages = memory.lay_out(PUBLISHED).host_block, 321
    assert plans(replace(PUBLISHED, host_bytes=(pages + 1) * block))[1].host == 0
    assert plans(replace(PUBLISHED, host_bytes=(pages + 2) * block))[1].host == 1


SETUPS = st.builds(
    memory.Setup,
    model=st.sampled_from(list(models.BUILT_IN.values())),
    device_bytes=st.integers(0, 80 * GIB),
    host_bytes=st.none() | st.integers(0, 200 * GIB),
    kv=st.sampled_from(models.FORMATS),
    indexer=st.sampled_from(models.FORMATS),
    tp=st.just(8),
    mtp=st.integers(0, 3),
    hot_size=st.integers(8192, 32768),
    block_size=st.sampled_from((16, 64, 128)),
    context=st.integers(1, 150000),
    output=st.integers(1, 10000),
    max_seqs=st.none() | st.integers(1, 64),
    batched_tokens=st.sampled_from((2048, 8192)),
    batches_in_flight=st.integers(1, 2),
    shared_host=st.booleans(),
)


def counts(setup: memory.Setup) -> tuple[int, ...]:
    off, on = plans(setup)
    return (
        off.admission,
        off.steady,
        off.concurrency,
        on.admission,
        on.prefill,
        on.steady,
        on.concurrency,
    )


@settings(max_examples=300, deadline=None)
@given(SETUPS, st.integers(1, 2**34))
def test_more_memory_never_holds_less(setup: memory.Setup, more: int) -> None:
    before = counts(setup)
    device = counts(replace(setup, device_bytes=setup.device_bytes + more))
    assert all(b <= a for b, a in zip(before, device, strict=True))
    if setup.host_bytes is not None:
        host = counts(replace(setup, host_bytes=setup.host_bytes + more))
        assert all(b <= a for b, a in zip(before, host, strict=True))
        unlimited = counts(replace(setup, host_bytes=None))
        assert all(b <= a for b, a in zip(host, unlimited, strict=True))


@settings(max_examples=300, deadline=None)
@given(SETUPS, st.integers(1, 50000))
def test_longer_requests_never_fit_better(setup: memory.Setup, more: int) -> None:
    before = counts(setup)
    for longer in (
        replace(setup, context=setup.context + more),
        replace(setup, output=setup.output + more),
        replace(setup, hot_size=setup.hot_size + more),
    ):
        assert all(b >= a for b, a in zip(before, counts(longer), strict=True))


@settings(max_examples=300, deadline=None)
@given(SETUPS)
def test_steady_state_is_what_fits_one_by_one(setup: memory.Setup) -> None:
    """Hand blocks to request after request, in the two ways that a request can live."""
    layout = memory.lay_out(setup)
    off, on = plans(setup)
    pages = -(-setup.slots // setup.block_size)
    groups = len(layout.cache_groups)

    def filled(blocks: int, each: int, kept: int = 0) -> int:
        free, held = blocks - 1 - kept, 0
        while free >= each:
            free, held = free - each, held + 1
        return held

    assert off.steady == filled(setup.device_bytes // layout.off_block, pages)
    blocks = setup.device_bytes // layout.on_block
    hot = groups * -(-setup.hot_size // setup.block_size)
    best = filled(blocks, pages + hot + groups * min(2, pages))
    if pages < -(-setup.batched_tokens * setup.batches_in_flight // setup.block_size):
        best = max(best, filled(blocks, pages * (groups + 1), max(hot, blocks // 10)))
    assert on.steady == best


@settings(max_examples=300, deadline=None)
@given(SETUPS)
def test_the_balanced_pool_is_the_smallest_that_does_not_limit(setup: memory.Setup) -> None:
    on = plans(setup)[1]
    wanted = min(on.steady, on.prefill, setup.max_seqs or on.steady)
    balanced = plans(replace(setup, host_bytes=on.balanced_host_bytes))[1]
    assert balanced.concurrency == wanted and balanced.host is not None and balanced.host >= wanted
    if wanted:
        less = plans(replace(setup, host_bytes=on.balanced_host_bytes - 1))[1]
        assert less.concurrency < wanted


@settings(max_examples=300, deadline=None)
@given(SETUPS)
def test_groups_hold_every_layer_once_and_blocks_hold_every_group(setup: memory.Setup) -> None:
    layout = memory.lay_out(setup)
    assert sum(layout.index_groups) == sum(layout.cache_groups) == layout.layers
    page = layout.main_row * setup.block_size
    assert layout.on_block % page == 0
    assert layout.on_block - page < layout.on_block_used <= layout.on_block
    assert max(layout.cache_groups) * page <= layout.on_block_used
    assert layout.index_layers * layout.index_row * setup.block_size <= layout.on_block_used


# Refills


def test_refill_bytes() -> None:
    layout = memory.lay_out(PUBLISHED)
    one = refill.refill(PUBLISHED, layout, LINK, 10, 0.75)
    assert one.bytes_per_step == 10 * 4 * 2048 * 0.25 * 51824 == 1061355520
    assert one.seconds == pytest.approx(0.0286853)
    assert one.link_share == pytest.approx(0.573706)
    assert one.bytes_per_second == 1061355520 / 0.05
    assert refill.refill(PUBLISHED, layout, LINK, 10, 1.0).bytes_per_step == 0
    # A prompt shorter than top-k has no more rows to select.
    short = replace(PUBLISHED, context=100)
    assert refill.refill(short, layout, LINK, 10, 0.0).bytes_per_step == 10 * 4 * 100 * 51824


def test_hit_rates_are_those_of_the_replay_documents() -> None:
    """Another top-k, context and seed than the table was measured with."""
    documented = re.findall(
        r"^\| `([a-z-]+)`.*?((?:\| \d+ ){6})\|$", (ROOT / "docs/demo.md").read_text(), re.M
    )
    setup = replace(PUBLISHED, mtp=0, context=68665, output=200)
    rows = {name: [int(n) for n in numbers.split("|")[2:]] for name, numbers in documented}
    for preset in refill.PRESETS:
        for size, percent in zip((2048, 3072, 4096, 6144, 8192), rows[preset], strict=True):
            assert abs(100 * refill.hit_rate(preset, setup, size) - percent) <= 2


@settings(max_examples=200, deadline=None)
@given(SETUPS, st.sampled_from(refill.PRESETS), st.integers(1, 20000))
def test_hit_rate_grows_with_the_hot_size(setup: memory.Setup, preset: str, more: int) -> None:
    low, high = (refill.hit_rate(preset, setup, setup.hot_size + n) for n in (0, more))
    assert 0 < low <= high <= 1
    tokens = setup.context + setup.output
    assert refill.hit_rate(preset, setup, tokens) == 1


@pytest.mark.parametrize(("preset", "rows", "context"), [("static", 0, 1), ("drift", 1, 0)])
def test_locality_table_can_be_measured_again(preset: str, rows: int, context: int) -> None:
    spec = importlib.util.spec_from_file_location("locality", ROOT / "tools/locality.py")
    assert spec and spec.loader
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    table = json.loads((ROOT / "python/hisparse_ops/plan/locality.json").read_text())
    assert table["mtp_rows"] == [*tool.MTP_ROWS] and table["contexts"] == [*tool.CONTEXTS]
    assert table["hot_sizes"] == [*tool.HOT_SIZES]
    sizes = tool.HOT_SIZES[::3]
    again = tool.measure(preset, tool.CONTEXTS[context], tool.MTP_ROWS[rows], sizes)
    assert again == table["hit_rates"][preset][rows][context][::3]


def test_recommendation_is_the_best_of_all() -> None:
    layout = memory.lay_out(PUBLISHED)
    for preset in refill.PRESETS:
        best = refill.recommend(PUBLISHED, layout, LINK, preset)
        assert best is not None and best.hot_size % 128 == 0
        for size in range(8192, 32769, 512):
            other = refill.consider(PUBLISHED, layout, LINK, preset, size)
            assert other.requests_per_second <= best.requests_per_second
    # Nothing to gain from hits on a link that costs nothing, and everything on one that costs all.
    fast, slow = (
        refill.recommend(PUBLISHED, layout, refill.Link(b, 0.05), "mid-layer") for b in (1e15, 1e6)
    )
    assert fast is not None and slow is not None and fast.hot_size == 8192 < slow.hot_size
    nothing = replace(PUBLISHED, device_bytes=0)
    assert refill.recommend(nothing, layout, LINK, "mid-layer") is None


# The command


def run(*argv: str) -> int:
    try:
        return main(argv)
    except SystemExit as stop:
        return int(stop.code or 0)


def test_answer_for_the_published_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", "GLM-5.2", *PUBLISHED_OPTIONS) == 0
    printed = capsys.readouterr().out
    assert_expected_inline(
        printed.split("\n\nrefills")[0],
        """\
GLM-5.2: KV c8, indexer c8, TP 8, MTP 3, hot size 10240, pages of 128 tokens
per rank: device KV 20.5 GiB, host pool 64 GiB; chunks of 8192 tokens, asynchronous scheduling
requests: 32,768 tokens in, 8,192 out
79 layers in 22 index groups (2 x 1, 19 x 4, 1 x 1), packed into 21 cache groups (1 x 2, 19 x 4, 1 x 1)

a token, all layers   main 51,824 B (656 x 79), indexer 2,904 B (132 x 22)
  OFF, on the device  54,728 B
  ON, on the device   2,904 B, and on the host 51,824 B
a request ON          hot buffers 672.7 MiB, indexer 128.5 MiB, resident tail 16.8 MiB
  on the host         2,030.7 MiB
a device block ON     419,840 B, 11.5 % of it padding to whole pages

requests                                                  OFF     ON
admission: let in when all arrive together                 12     26
prefill: taken in together on the way to hot buffers        -     25
steady state: decode together up to the last token          9     25
the host pool holds                                         -     32
maximum concurrency                                         9     25
limited by: OFF device blocks; ON device blocks, most of them hot buffers

device blocks: OFF 3,142 (321 a request), ON 52,428 (2,043 a request); host blocks 10,359
balanced host pool: 49.6 GiB a rank, 396.7 GiB for 8 ranks
vLLM's own estimate at start, for requests of 40,960 tokens: 24.38
note: the engine lets 26 in, and with more than 25 requests preempt each other""",
    )
    table = re.search(r"^requests  .*?^limited by[^\n]*", printed, re.M | re.S)
    assert table and table.group() in (ROOT / "docs/plan.md").read_text()


@pytest.mark.parametrize("name", models.BUILT_IN)
@pytest.mark.parametrize("options", [[], ["--mtp", "1", "--kv", "bf16", "--host-pool-gib", "40"]])
def test_answer_for_every_model(
    name: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("plan", name.lower(), "--device-kv-gib", "30", *options) == 0
    text = capsys.readouterr().out
    assert ("note: GLM-5.3 is taken to have the layers of GLM-5.2" in text) == (name == "GLM-5.3")
    assert run("plan", name, "--device-kv-gib", "30", *options, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model"] == name
    concurrency = re.search(r"^maximum concurrency +(\d+) +(\d+)$", text, re.M)
    assert concurrency is not None
    assert [int(n) for n in concurrency.groups()] == [
        found["off"]["concurrency"],
        found["on"]["concurrency"],
    ]
    assert found["on"]["concurrency"] > found["off"]["concurrency"] > 0
    assert f"recommended hot size: {found['recommended_hot_size']} " in text
    for point in found["curve"]:
        line = rf"^ *{point['context']:,} \|.*\| *{point['off']} *{point['on']}( <)?$"
        assert re.search(line, text, re.M), point


def test_nothing_fits_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", "GLM-5.2", "--device-kv-gib", "0.1", "--host-pool-gib", "0.1") == 0
    text = capsys.readouterr().out
    assert "vLLM would refuse to start" in text
    assert "recommended hot size: none, no request fits" in text
    assert run("plan", "GLM-5.2", "--device-kv-gib", "0.1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["recommended_hot_size"] is None


def _paths(value: Any, path: str = "") -> set[str]:
    """``a.b``, ``a[].b``; presets are ``*``."""
    if isinstance(value, dict):
        return set().union(
            *(
                _paths(v, f"{path}.{'*' if k in refill.PRESETS else k}".strip("."))
                for k, v in value.items()
            )
        )
    if isinstance(value, list):
        return set().union(*(_paths(v, f"{path}[]") for v in value))
    return {path}


def test_json_keys_are_the_documented_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", "GLM-5.2", *PUBLISHED_OPTIONS, "--json") == 0
    found = _paths(json.loads(capsys.readouterr().out))
    page = (ROOT / "docs/plan.md").read_text().split("## JSON", 1)[1]
    documented: set[str] = set()
    for keys, about in re.findall(r"^\| (`.*?`) \| (.*) \|$", page, re.M):
        for key in re.findall(r"`([^`]+)`", keys):
            if key.startswith("hot_sizes"):
                documented |= {f"{key}.{part}" for part in re.findall(r"`([^`]+)`", about)}
            else:
                documented.add(key)
    assert found == documented


def test_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="the demo extra is not installed")
    for name, options in {"a": PUBLISHED_OPTIONS, "b": ["--device-kv-gib", "0.1"]}.items():
        file = tmp_path / f"{name}.png"
        assert run("plan", "GLM-5.2", *options, "--plot", str(file)) == 0
        assert file.read_bytes().startswith(b"\x89PNG")


BAD = {
    "": "the following arguments are required: MODEL, --device-kv-gib",
    "GLM-5.2": "the following arguments are required: --device-kv-gib",
    "GLM-4 --device-kv-gib 20": "GLM-4: no such file, and no built-in model (GLM-5.2, GLM-5.3, DeepSeek-V3.2)",
    "GLM-5.2 --device-kv-gib 0": (
        "argument --device-kv-gib: must be a number, between 0.001 and 1e+06, got 0"
    ),
    "GLM-5.2 --device-kv-gib nan": (
        "argument --device-kv-gib: must be a number, between 0.001 and 1e+06, got nan"
    ),
    "GLM-5.2 --device-kv-gib 20 --kv fp8": "argument --kv: invalid choice: 'fp8'",
    "GLM-5.2 --device-kv-gib 20 --context 0": (
        "argument --context: must be an integer, at least 1, got 0"
    ),
    "GLM-5.2 --device-kv-gib 20 --mtp 3 --hot-size 8000": (
        "--hot-size must be at least (mtp + 1) * top-k = 8192, got 8000"
    ),
    "GLM-5.2 --device-kv-gib 20 --hot-size 32769": (
        "argument --hot-size: must be an integer, between 1 and 32768, got 32769"
    ),
    "GLM-5.2 --device-kv-gib 20 --context 1048576": (
        "--context + --output must be at most 1048576, the model's longest, got 1056768"
    ),
    "GLM-5.2 --device-kv-gib 20 --plot /nowhere/x.png": (
        "--plot /nowhere/x.png: no such directory"
    ),
}


@pytest.mark.parametrize("command", BAD)
def test_bad_options_get_one_sentence(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", *command.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith(f"python -m hisparse_ops: {BAD[command]}")


def test_config_that_cannot_serve_the_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.json"
    file.write_text(
        json.dumps({**HF["deepseek_v32"], "num_nextn_predict_layers": 0, "index_topk": 40000})
    )
    for options, words in {
        "--mtp 1": "--mtp must be 0 for a model without MTP layers, got 1",
        "--mtp 0": "(mtp + 1) * top-k must be at most 32768, got 40000",
    }.items():
        assert run("plan", str(file), "--device-kv-gib", "20", *options.split()) == 2
        assert capsys.readouterr().err == f"python -m hisparse_ops: {words}\n"


@pytest.mark.parametrize("start", [["-m", "hisparse_ops"], ["-mhisparse_ops"]])
def test_a_plan_imports_neither_torch_nor_numpy(start: list[str], tmp_path: Path) -> None:
    """Modules of their names come first on the path, and end the process."""
    for name in ("torch", "numpy", "matplotlib"):
        (tmp_path / f"{name}.py").write_text(f"import os\nprint('{name}')\nos._exit(7)\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "HISPARSE_CPU_ISA": "bogus"}

    def ended(*argv: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *start, *argv]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    for options in (
        ["--help"],
        ["GLM-5.2", *PUBLISHED_OPTIONS],
        ["GLM-5.2", "--json", *PUBLISHED_OPTIONS],
    ):
        done = ended("plan", *options)
        assert done.returncode == 0 and done.stderr == "" and done.stdout
    assert ended("info").returncode == 7  # so the guard works


def test_picture_is_on_one_scale() -> None:
    plan = report.Plan.of(PUBLISHED, LINK)
    lines = report.as_text(plan).split("\n\n")[-1].split("\n")[1:]
    assert len(lines) == len(plan.curve)
    most = max(max(off, on) for _, off, on in plan.curve)
    for line, (context, off, on) in zip(lines, plan.curve, strict=True):
        cells = line.split("|")[1]
        both = round(off / most * 44) == round(on / most * 44)
        assert cells.index("*" if both else "o") == round(off / most * 44)
        assert cells.index("*" if both else "x") == round(on / most * 44)
        assert line.endswith("<") == (context == PUBLISHED.context)
