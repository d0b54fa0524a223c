"""What a plan needs to know of a model: its layers, which of them run an indexer, and the widths of a row."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hisparse_ops._cli import UsageError

FORMATS = ("bf16", "c8")
"""KV formats; main and indexer cache choose independently."""


@dataclass(frozen=True)
class Widths:
    """Elements of a row, and rows of a selection."""

    latent: int
    rope: int
    index_dim: int
    top_k: int


@dataclass(frozen=True)
class Model:
    """The geometry of a DSA model. Attention layers are numbered as in the checkpoint; MTP layers come last."""

    name: str
    widths: Widths
    indexers: tuple[bool, ...]
    """Per layer: whether it runs an indexer (and leads an index group) or follows the layer before it."""
    mtp_layers: int
    """Draft layers of the checkpoint; each runs an indexer. Used when the plan has draft tokens."""
    max_length: int
    note: str = ""

    @property
    def top_k(self) -> int:
        return self.widths.top_k

    def row_bytes(self, form: str) -> int:
        """Bytes of one token in one layer of the main cache."""
        latent, rope = self.widths.latent, self.widths.rope
        if form == "bf16":
            return 2 * (latent + rope)
        # FP8 latent with an FP32 scale for each 128 of it; the rope key stays BF16.
        return latent + 4 * -(-latent // 128) + 2 * rope

    def index_row_bytes(self, form: str) -> int:
        """Bytes of one token in one indexer cache."""
        width = self.widths.index_dim
        return 2 * width if form == "bf16" else width + 4 * -(-width // 128)

    def index_groups(self, mtp: int) -> list[int]:
        """Layers of each index group: a layer that runs an indexer, and those that follow its top-k."""
        groups: list[int] = []
        for leads in (*self.indexers, *[True] * (self.mtp_layers if mtp else 0)):
            if leads or not groups:
                groups.append(0)
            groups[-1] += 1
        return groups


def index_schedule(layers: int, freq: int, offset: int) -> tuple[bool, ...]:
    """IndexShare: layers up to ``offset - 1`` run an indexer, and from there on every ``freq``-th."""
    return tuple(max(layer - offset + 1, 0) % freq == 0 for layer in range(layers))


_WIDTHS = Widths(latent=512, rope=64, index_dim=128, top_k=2048)

BUILT_IN = {
    model.name: model
    for model in (
        Model("GLM-5.2", _WIDTHS, index_schedule(78, 4, 3), 1, 1048576),
        Model(
            "GLM-5.3",
            _WIDTHS,
            index_schedule(78, 4, 3),
            1,
            1048576,
            note="taken to have the layers of GLM-5.2; its config.json settles it",
        ),
        Model("DeepSeek-V3.2", _WIDTHS, (True,) * 61, 1, 163840),
    )
}


# They have an index_topk, but not one row per token and layer. vLLM refuses HiSparse for the first.
_OTHER_CACHES = {
    "deepseek_v4": "its cache is compressed",
    "glm5_next": "its indexer selects pools of tokens, and some layers have no KV cache",
    "glm5_next_text": "its indexer selects pools of tokens, and some layers have no KV cache",
}


def find(name: str) -> Model:
    """A built-in model by its name, in any case, or the model of a ``config.json`` (or of the folder with it)."""
    for model in BUILT_IN.values():
        if model.name.lower() == name.lower():
            return model
    path = Path(name)
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        raise UsageError(f"{name}: no such file, and no built-in model ({', '.join(BUILT_IN)})")
    return load(path)


def load(path: Path) -> Model:
    """The model of a Hugging Face ``config.json``."""
    try:
        config = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not a JSON file ({error})") from None
    if not isinstance(config, dict):
        raise UsageError(f"{path}: must be a JSON object, got {type(config).__name__}")
    return from_config(config, str(path))


def from_config(config: dict[str, Any], source: str) -> Model:
    """The model that ``config`` describes; ``source`` is what errors call it."""
    kind = str(config.get("model_type", "unknown"))
    if "index_topk" not in config:
        raise UsageError(f"{source}: not a DSA model (model_type {kind}): it has no index_topk")
    if kind in _OTHER_CACHES:
        raise UsageError(f"{source}: model_type {kind} cannot be planned: {_OTHER_CACHES[kind]}")
    read = _Reader(config, source)
    layers = read.integer("num_hidden_layers", 1)
    widths = Widths(
        latent=read.integer("kv_lora_rank", 1),
        rope=read.integer("qk_rope_head_dim", 0),
        index_dim=read.integer("index_head_dim", 1),
        top_k=read.integer("index_topk", 1),
    )
    read.finish()
    return Model(
        name=kind,
        widths=widths,
        indexers=_indexers(read, layers),
        mtp_layers=read.integer("num_nextn_predict_layers", 0, default=0),
        max_length=read.integer("max_position_embeddings", 1, default=2**31 - 1),
    )


class _Reader:
    """Reads integers, and remembers what is missing, so that one error names all of it."""

    def __init__(self, config: dict[str, Any], source: str) -> None:
        self.config, self.source = config, source
        self.missing: list[str] = []

    def integer(self, key: str, low: int, default: int | None = None) -> int:
        value = self.config.get(key)
        if value is None and default is not None:
            return default
        if value is None:
            self.missing.append(key)
            return low
        if type(value) is not int or not low <= value < 2**31:
            raise UsageError(
                f"{self.source}: {key} must be an integer, at least {low}, got {value!r}"
            )
        return value

    def finish(self) -> None:
        if self.missing:
            raise UsageError(f"{self.source}: it has no {', '.join(self.missing)}")


def _indexers(read: _Reader, layers: int) -> tuple[bool, ...]:
    """Which layers run an indexer: listed, or as a pattern of F and S, or every so many layers."""
    for key, leads, follows in (
        ("indexer_types", "full", "shared"),
        ("index_topk_pattern", "F", "S"),
    ):
        kinds = read.config.get(key)
        if kinds is None:
            continue
        if (
            not isinstance(kinds, (list, str))
            or len(kinds) != layers
            or {*kinds} - {leads, follows}
        ):
            raise UsageError(
                f"{read.source}: {key} must have {leads} or {follows} for each of the {layers} layers,"
                f" got {str(kinds)[:60]}"
            )
        return tuple(kind == leads for kind in kinds)
    freq = read.integer("index_topk_freq", 1, default=1)
    return index_schedule(layers, freq, read.integer("index_skip_topk_offset", 0, default=2))
