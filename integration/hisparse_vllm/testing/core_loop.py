"""vLLM Core's scheduler and worker, stepped without a model, with every KV row that attention reads compared.

Everything of Core is the installed code: ``Scheduler``, ``KVCacheManager``, ``HiSparseCoordinator``, both sides of
``HiSparseConnector``, ``ActiveKVConnector``, ``BlockTables``, cache binding, index groups and the runtime. What stands
in for a model is here: layers that write rows of known bytes (:mod:`.core_rows`), an indexer that picks positions at
random, and a sampler that accepts or rejects drafts at random.
"""

from __future__ import annotations

import importlib
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import hisparse_ops
from hisparse_vllm.core import version
from hisparse_vllm.prefill import PrefillBridge
from hisparse_vllm.testing import tiny_configs
from hisparse_vllm.testing.core_rows import prefix_keys, row_bytes


@dataclass(frozen=True)
class Settings:
    """What a :class:`CoreLoop` is made of. Small by default, so that pages are lost and rows are evicted."""

    device_blocks: int = 96
    block_size: int = 16
    top_k: int = 16
    hot_size: int | None = None
    layers: int = 4
    leader_every: int = 2
    draft_tokens: int = 0
    """Draft tokens a step (MTP), proposed by one draft layer."""
    c8: bool = False
    """Rows of 656 opaque bytes instead of 576 BF16."""
    eager_host_mirror: bool = True
    prefix_caching: bool = True
    host_pool_gib: float = 0.02
    max_model_len: int = 512
    max_num_seqs: int = 4
    max_num_batched_tokens: int = 128
    stale_owners: bool = False
    """Give every request hot copies of rows it is about to write, as a page leaves them that was lost and came back.
    Core's own schedules do not: it rewrites a row only while its page is resident. Needs the eager mirror."""
    accept: float = 0.6
    """Chance that a draft token is accepted."""
    seed: int = 0


class WrongRow(AssertionError):
    """Attention read, or the host holds, bytes that were not written for that token."""


class Layer:
    """What cache binding and the connector's worker need of an attention layer."""

    def __init__(
        self, name: str, number: int, group: Any, index: int, is_draft_layer: bool
    ) -> None:
        self.name = name
        self.number = number
        self.group = group
        self.index = index
        self.is_draft_layer = is_draft_layer
        self.hisparse_cache = group.cache(index)


@dataclass
class Running:
    """A request the worker knows."""

    state_row: int
    computed: int
    tokens: list[int]
    keys: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    drafts: list[int] = field(default_factory=list)

    def keys_of(self, tokens: list[int]) -> np.ndarray:
        """Keys of a token sequence that starts like the last one asked for."""
        same = 0
        for a, b in zip(self.tokens, tokens, strict=False):
            if a != b:
                break
            same += 1
        same = min(same, len(self.keys))
        before = int(self.keys[same - 1]) if same else 0
        self.keys = np.concatenate((self.keys[:same], prefix_keys(tokens[same:], same, before)))
        self.tokens = tokens
        return self.keys


@dataclass
class Batch:
    """One step's tokens, as the model runner lays them out: decodes first."""

    requests: list[str]
    counts: list[int]
    num_decodes: int
    metadata: Any
    positions: np.ndarray
    batch_rows: np.ndarray
    keys: list[np.ndarray]
    """For each request the keys of its tokens up to the end of this step, drafts included."""

    @property
    def num_tokens(self) -> int:
        return len(self.positions)


class CoreLoop:
    """vLLM Core with the layers of a small model; :meth:`step` is one scheduler step."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self.random = random.Random(settings.seed)
        self.generator = np.random.default_rng(settings.seed)
        # vLLM's CPU worker replaces what its model runner takes to be CUDA by importing this.
        importlib.import_module("vllm.v1.worker.cpu.shm")
        self.seen: Counter[str] = Counter()
        self.prefills = PrefillBridge()
        """Rows compared, by how they were read; steps, preemptions and the like beside them."""
        self.running: dict[str, Running] = {}
        self.finished: dict[str, list[int]] = {}
        self.last_batch: list[str] = []
        """Requests of the last step that ran, by batch row."""
        self.last_was_decode = False
        self.config = _config(settings, folder)
        self._make_scheduler_side()
        self._make_worker_side()
        self._make_scheduler()
        self.free_state_rows = list(range(settings.max_num_seqs))
        self._valid_pages: dict[str, set[int]] = {}

    # Construction, in the order in which an engine does it.

    def _make_scheduler_side(self) -> None:
        from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs

        config, settings = self.config, self.settings
        register_all_kvcache_specs(config)
        planning = version.planning()
        groups = planning.get_kv_cache_groups(config, _specs(settings))
        on_device = [group for group in groups if not group.host_resident]
        layout = config.cache_config.get_resolved_kv_cache_layout()
        block_bytes = planning._get_kv_cache_bytes_per_block(on_device, layout)
        self.caches_config = planning.get_kv_cache_config_from_groups(
            config, groups, block_bytes * settings.device_blocks
        )
        config.cache_config.num_gpu_blocks = self.caches_config.num_blocks

    def _make_worker_side(self) -> None:
        from vllm.distributed.kv_transfer import kv_transfer_state
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
        from vllm.v1.hisparse import binding
        from vllm.v1.worker.gpu.kv_connector import ActiveKVConnector

        config, settings = self.config, self.settings
        self.layers = _layers(config, settings)
        self.target_layers = [layer for layer in self.layers if not layer.is_draft_layer]
        self.draft_layers = [layer for layer in self.layers if layer.is_draft_layer]
        self.block_tables = _block_tables(config, self.caches_config)
        self.kv_caches = binding.init_hisparse_kv_cache(
            self.caches_config,
            torch.device("cpu"),
            [settings.block_size] * len(self.caches_config.kv_cache_groups),
            config,
            config.compilation_config.static_forward_context,
            self.block_tables,
        )
        kv_transfer_state._KV_CONNECTOR_AGENT = KVConnectorFactory.create_connector(
            config, KVConnectorRole.WORKER, self.caches_config
        )
        self.worker = kv_transfer_state._KV_CONNECTOR_AGENT.connector_worker
        self.connector = ActiveKVConnector(config, self.kv_caches)
        runtime = self.layers[0].hisparse_cache.runtime
        self.row_width = runtime.row_width * runtime.kv_dtype.itemsize

    def _make_scheduler(self) -> None:
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config, init_none_hash
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.structured_output import StructuredOutputManager

        init_none_hash(sha256)
        self.scheduler = Scheduler(
            self.config,
            generate_scheduler_kv_cache_config([self.caches_config]),
            StructuredOutputManager(self.config),
            block_size=self.settings.block_size,
            log_stats=False,
        )
        self.coordinator = self.scheduler.connector.connector_scheduler.coordinator

    def close(self) -> None:
        """Release what the worker holds."""
        from vllm.distributed.kv_transfer import kv_transfer_state

        self.worker.shutdown()
        kv_transfer_state._KV_CONNECTOR_AGENT = None

    # Requests.

    def add(self, name: str, tokens: list[int], max_tokens: int) -> None:
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher
        from vllm.v1.request import Request

        self.scheduler.add_request(
            Request(
                request_id=name,
                prompt_token_ids=tokens,
                sampling_params=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
                pooling_params=None,
                block_hasher=get_request_block_hasher(self.settings.block_size, sha256),
            )
        )

    def abort(self, name: str) -> None:
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    @property
    def unfinished(self) -> int:
        return self.scheduler.get_num_unfinished_requests()

    # One step.

    def step(self) -> Any:
        """Schedule, run the layers, compare every row read, sample, hand the results back."""
        from vllm.forward_context import set_forward_context

        scheduled = self.scheduler.schedule()
        self.seen["steps"] += 1
        self.seen["preemptions"] += len(scheduled.preempted_req_ids or ())
        self._update_requests(scheduled)
        if not scheduled.num_scheduled_tokens:
            output = self.connector.no_forward(scheduled)
            self.scheduler.update_from_output(scheduled, output)
            return scheduled
        batch = self._batch(scheduled)
        self.last_batch = batch.requests
        self.last_was_decode = batch.num_decodes == len(batch.requests)
        metadata = {layer.name: batch.metadata for layer in self.layers}
        runner_batch = SimpleNamespace(
            idx_mapping=batch.metadata.state_rows,
            req_ids=batch.requests,
            num_tokens=batch.num_tokens,
        )
        with set_forward_context(metadata, self.config, num_tokens=batch.num_tokens):
            self.connector.pre_forward(scheduled, runner_batch, metadata)
            if self.settings.stale_owners:
                self._plant_stale_owners(batch)
            for layer in self.target_layers:
                self._run_layer(layer, batch, batch.keys, batch.counts)
            self.connector.finish_forward()
        if self.settings.stale_owners:
            self._check_stale_owners(batch)
        sampled = [self._sample(batch, i, scheduled) for i in range(len(batch.requests))]
        result = self._finish_step(scheduled, batch, sampled)
        self._hand_back(scheduled, batch, sampled, result)
        self._compare_host_pages()
        return scheduled

    def _finish_step(self, scheduled: Any, batch: Batch, sampled: list[list[int]]) -> Any:
        """The connector's last calls and the drafter, in the order of this Core's model runner."""
        finished = scheduled.finished_req_ids
        if not version.core().draft_finalizer:
            self._run_drafter(batch, sampled)
            return self.connector.post_forward(finished)
        output = self.connector.post_forward(finished, defer_finalize=bool(self.draft_layers))
        self._run_drafter(batch, sampled)
        if self.draft_layers:
            self.connector.finalize_step()
        return output

    def _update_requests(self, scheduled: Any) -> None:
        for name in scheduled.finished_req_ids | (scheduled.preempted_req_ids or set()):
            self._valid_pages.pop(name, None)
            if name in self.running:
                self.free_state_rows.append(self.running.pop(name).state_row)
        # State rows come in any order, so that they are never the batch rows by accident.
        self.random.shuffle(self.free_state_rows)
        for new in scheduled.scheduled_new_reqs:
            row = self.free_state_rows.pop()
            self.running[new.req_id] = Running(row, new.num_computed_tokens, [])
            self.block_tables.append_block_ids(row, new.block_ids, overwrite=True)
        cached = scheduled.scheduled_cached_reqs
        for i, name in enumerate(cached.req_ids):
            request = self.running[name]
            request.computed = cached.num_computed_tokens[i]
            if cached.new_block_ids[i] is not None:
                self.block_tables.append_block_ids(
                    request.state_row, cached.new_block_ids[i], overwrite=False
                )
        self.block_tables.apply_staged_writes()

    def _batch(self, scheduled: Any) -> Batch:
        counts = scheduled.num_scheduled_tokens
        names = list(counts)
        self.random.shuffle(names)
        longest = 1 + self.settings.draft_tokens
        names.sort(key=lambda name: counts[name] > longest)
        numbers = [counts[name] for name in names]
        num_decodes = sum(n <= longest for n in numbers)
        keys, positions, batch_rows = [], [], []
        for i, name in enumerate(names):
            request = self.running[name]
            drafts = scheduled.scheduled_spec_decode_tokens.get(name, [])
            request.drafts = list(drafts)
            end = request.computed + numbers[i]
            known = list(self.scheduler.requests[name].all_token_ids)[: end - len(drafts)]
            keys.append(request.keys_of(known + request.drafts))
            assert len(keys[-1]) == end
            positions.append(np.arange(request.computed, end))
            batch_rows.append(np.full(numbers[i], i))
        all_positions = np.concatenate(positions)
        all_rows = np.concatenate(batch_rows)
        metadata = self._metadata(names, numbers, num_decodes, all_positions, all_rows)
        return Batch(names, numbers, num_decodes, metadata, all_positions, all_rows, keys)

    def _metadata(
        self,
        names: list[str],
        counts: list[int],
        num_decodes: int,
        positions: np.ndarray,
        batch_rows: np.ndarray,
    ) -> Any:
        starts = torch.tensor(np.concatenate(([0], np.cumsum(counts))), dtype=torch.int32)
        rows = [self.running[name].state_row for name in names]
        state_rows = torch.tensor(rows, dtype=torch.int32)
        tables = self.block_tables.gather_block_tables(state_rows, len(names))
        self.block_tables.compute_slot_mappings(
            state_rows, starts, torch.from_numpy(positions), len(positions)
        )
        lengths = [self.running[n].computed + c for n, c in zip(names, counts, strict=True)]
        (host_group,) = self.caches_config.host_group_ids
        return SimpleNamespace(
            num_actual_tokens=len(positions),
            num_decode_tokens=sum(counts[:num_decodes]),
            num_decodes=num_decodes,
            num_reqs=len(names),
            max_query_len=max(counts),
            req_id_per_token=torch.from_numpy(batch_rows.astype(np.int32)),
            block_table=tables[host_group],
            block_size=self.settings.block_size,
            query_start_loc=starts,
            seq_lens=torch.tensor(lengths, dtype=torch.int32),
            state_rows=state_rows,
            prefill=None,
        )

    # Layers.

    def _run_layer(
        self, layer: Layer, batch: Batch, keys: list[np.ndarray], valid: list[int]
    ) -> None:
        """Write this step's rows and read what the indexer picks; ``valid`` tokens of each request are real."""
        handle, metadata = layer.hisparse_cache, batch.metadata
        layer.group.prepare_for_batch(layer.index, metadata)
        cache, slots, count = handle.write_target(
            batch.num_tokens, self.block_tables.slot_mappings.shape[1]
        )
        rows = row_bytes(self._token_keys(batch, keys), layer.number, self.row_width)
        rows = rows.view(cache.dtype)[:count]
        hisparse_ops.scatter_rows([rows], slots[:count], [cache])
        handle.finish_kv_update()
        if layer.index == 0:
            self._pick(layer, batch, valid)
            layer.group.set_logical_topk_ready(0)
        mixed = batch.num_decodes < len(batch.requests)
        if mixed and handle.all_context_pages_resident and not version.core().batch_block_table:
            # Core 0.33 does not resolve here: it has one Triton conversion for decodes and prefills.
            self._read_prefills(layer, batch, keys, first=0)
            return
        self._read_decodes(layer, batch, keys, valid)
        if mixed:
            self._read_prefills(layer, batch, keys, first=metadata.num_decode_tokens)

    def _token_keys(self, batch: Batch, keys: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([k[len(k) - n :] for k, n in zip(keys, batch.counts, strict=True)])

    def _pick(self, layer: Layer, batch: Batch, valid: list[int]) -> None:
        """Random top-k below each token's position, itself included; hot ones come up again and again."""
        topk = layer.group.logical_topk_indices
        topk.fill_(-1)
        top_k = topk.shape[1]
        first = 0
        for i, count in enumerate(batch.counts):
            for j in range(min(count, valid[i])):
                context = int(batch.positions[first + j]) + 1
                if context <= top_k:
                    chosen = self.generator.permutation(context)
                else:
                    recent = self.generator.random(context) + np.linspace(0, 0.7, context)
                    chosen = np.argpartition(recent, -top_k)[-top_k:]
                    if context - 1 not in chosen:
                        chosen[0] = context - 1
                topk[first + j, : len(chosen)] = torch.from_numpy(chosen.astype(np.int32))
            first += count

    def _read_decodes(
        self, layer: Layer, batch: Batch, keys: list[np.ndarray], valid: list[int]
    ) -> None:
        metadata = batch.metadata
        count = metadata.num_decode_tokens
        if not count:
            return
        decodes = SimpleNamespace(
            **{
                **vars(metadata),
                "req_id_per_token": metadata.req_id_per_token[:count],
                "query_start_loc": metadata.query_start_loc[: batch.num_decodes + 1],
            }
        )
        topk = layer.group.logical_topk_indices[:count]
        before = self.hot_counts(layer)
        indices, counts = layer.group.convert_logical_to_physical_topk(
            layer.index, topk, decodes, block_stride_rows=None, return_valid_counts=True
        )
        wanted = topk >= 0
        self._same(counts[:count], wanted.sum(1), layer, "valid counts")
        self._same(indices[:count] >= 0, wanted, layer, "entries answered")
        if layer.index == 0:
            self._check_counts(layer, batch, topk, before)
        cache = layer.group.physical_kv_cache(layer.index)
        rows = _rows_at(cache, indices[:count][wanted])
        self._compare("decode", layer, batch, keys, topk, rows, first=0)

    def _check_counts(
        self, layer: Layer, batch: Batch, topk: Tensor, before: tuple[int, int]
    ) -> None:
        """Every reference that no resident page answers is a hit or the first one of a load."""
        handle = layer.hisparse_cache
        states = batch.metadata.state_rows.long()[
            batch.metadata.req_id_per_token[: len(topk)].long()
        ]
        wanted = topk >= 0
        pages = torch.where(wanted, topk, 0).long() // self.settings.block_size
        resident = handle.block_table[states[:, None].expand_as(pages), pages] > 0
        references = int((wanted & ~resident).sum())
        hits, loads = (now - then for now, then in zip(self.hot_counts(layer), before, strict=True))
        if hits + loads != references:
            raise WrongRow(
                f"statistics of {layer.name}: {hits} hits and {loads} loads,"
                f" for {references} references to rows that are not resident"
            )
        self.seen["hot hits"] += hits
        self.seen["hot loads"] += loads

    def _read_prefills(
        self, layer: Layer, batch: Batch, keys: list[np.ndarray], first: int
    ) -> None:
        handle, metadata = layer.hisparse_cache, batch.metadata
        topk = layer.group.logical_topk_indices[first : batch.num_tokens]
        if handle.all_context_pages_resident:
            how, cache, tables = "resident", handle.view.cache, version.resident_rows(handle)
            requests = metadata.req_id_per_token[first:]
        else:
            how = "staged"
            if metadata.prefill is None:
                metadata.prefill = SimpleNamespace(host_staging_plan=self._staging_plan(batch))
            cache, tables, requests = self.prefills.stage(layer.group, layer.index, metadata)
        wanted = topk >= 0
        pages = torch.where(wanted, topk, 0).long() // self.settings.block_size
        blocks = tables.long()[requests.long()[:, None].expand_as(pages), pages]
        index = blocks * self.settings.block_size + topk.long() % self.settings.block_size
        self._compare(how, layer, batch, keys, topk, _rows_at(cache, index[wanted]), first=first)

    def _staging_plan(self, batch: Batch) -> Any:
        from vllm.v1.hisparse.runtime import build_hisparse_prefill_staging_plan

        metadata, size = batch.metadata, self.settings.block_size
        lengths = metadata.seq_lens[batch.num_decodes :]
        capacity = int(((lengths.long() + size - 1) // size).sum())
        tables = metadata.block_table[batch.num_decodes :]
        return build_hisparse_prefill_staging_plan(tables, lengths, size, capacity)

    def _compare(
        self,
        how: str,
        layer: Layer,
        batch: Batch,
        keys: list[np.ndarray],
        topk: Tensor,
        rows: Tensor,
        first: int,
    ) -> None:
        """The rows read for the valid entries of ``topk``, whose first row is token ``first`` of the batch."""
        wanted = (topk >= 0).numpy()
        picked = topk.numpy()[wanted]
        owners = np.broadcast_to(batch.batch_rows[first : first + len(topk), None], wanted.shape)[
            wanted
        ]
        expected = np.empty(len(picked), dtype=np.uint64)
        for i in np.unique(owners):
            mine = owners == i
            expected[mine] = keys[i][picked[mine]]
        right = row_bytes(expected, layer.number, self.row_width)
        wrong = (rows != right).any(1).nonzero()
        if len(wrong):
            at = int(wrong[0])
            raise WrongRow(
                f"{how} read of {layer.name}, request {batch.requests[owners[at]]}, position"
                f" {picked[at]}: not the row written for it ({len(wrong)} of {len(rows)} rows wrong)"
            )
        self.seen[f"{how} rows"] += len(rows)

    def _same(self, got: Tensor, expected: Tensor, layer: Layer, what: str) -> None:
        if not torch.equal(got.long(), expected.long()):
            raise WrongRow(f"{what} of {layer.name}: {got.tolist()}, expected {expected.tolist()}")

    # Rows written again.

    def _written(self, batch: Batch) -> list[tuple[int, Tensor]]:
        """(state row, host rows written in this step) of each request."""
        (host_group,) = self.caches_config.host_group_ids
        slots = self.block_tables.slot_mappings[host_group, : batch.num_tokens].long()
        states = batch.metadata.state_rows.tolist()
        return [
            (state, slots[torch.from_numpy(batch.batch_rows == i)])
            for i, state in enumerate(states)
        ]

    def _plant_stale_owners(self, batch: Batch) -> None:
        for state, written in self._written(batch):
            for layer in self.target_layers:
                if layer.index == 0:
                    group = layer.hisparse_cache.runtime.index_group
                    oldest = int(group.lru_slots[state, 0])
                    group.device_global_indices[state, oldest] = int(written[-1])
                    self.seen["stale owners"] += 1

    def _check_stale_owners(self, batch: Batch) -> None:
        for state, written in self._written(batch):
            for layer in self.target_layers:
                if layer.index == 0:
                    owners = layer.hisparse_cache.runtime.index_group.device_global_indices[state]
                    stale = torch.isin(owners.long(), written).nonzero()
                    if len(stale):
                        raise WrongRow(
                            f"stale hot row of {layer.name}: slot {int(stale[0])} of state {state} still owns a host"
                            " row that this step wrote"
                        )

    # Sampling and drafting.

    def _sample(self, batch: Batch, i: int, scheduled: Any) -> list[int]:
        """Accepted drafts and one token more; nothing while the prompt is not computed."""
        name = batch.requests[i]
        request, known = self.running[name], self.scheduler.requests[name]
        if request.computed + batch.counts[i] - len(request.drafts) < known.num_tokens:
            return []
        accepted = 0
        while accepted < len(request.drafts) and self.random.random() < self.settings.accept:
            accepted += 1
        return [*request.drafts[:accepted], self.random.randrange(2, 500)]

    def _run_drafter(self, batch: Batch, sampled: list[list[int]]) -> None:
        """The draft layer over this step's tokens, then rows of guesses at the positions after them."""
        if not self.draft_layers:
            return
        from vllm.forward_context import set_forward_context

        valid = []
        for i, name in enumerate(batch.requests):
            rejected = len(self.running[name].drafts) - max(len(sampled[i]) - 1, 0)
            valid.append(batch.counts[i] - rejected)
        # A rejected draft's row holds whatever the drafter made of it: never to be read.
        keys = [k.copy() for k in batch.keys]
        for k, count, real in zip(keys, batch.counts, valid, strict=True):
            k[len(k) - count + real :] ^= np.uint64(0xDEAD)
        metadata = {layer.name: batch.metadata for layer in self.draft_layers}
        with set_forward_context(metadata, self.config, num_tokens=batch.num_tokens):
            for layer in self.draft_layers:
                self._run_layer(layer, batch, keys, valid)
                self._write_guesses(layer, batch, valid)

    def _write_guesses(self, layer: Layer, batch: Batch, valid: list[int]) -> None:
        """Rows at positions that no token has yet: what steps 2.. of a drafter leave there."""
        handle = layer.hisparse_cache
        tables = version.resident_rows(handle).long()
        slots = []
        for i, name in enumerate(batch.requests):
            end = self.running[name].computed + valid[i]
            for position in range(end, end + self.settings.draft_tokens - 1):
                page = position // self.settings.block_size
                block = int(tables[i, page]) if page < tables.shape[1] else 0
                if block > 0:
                    slots.append(
                        block * self.settings.block_size + position % self.settings.block_size
                    )
        if not slots:
            return
        noise = self.generator.integers(0, 256, (len(slots), self.row_width), dtype=np.uint8)
        rows = torch.from_numpy(noise).view(handle.view.cache.dtype)
        hisparse_ops.scatter_rows(
            [rows], torch.tensor(slots, dtype=torch.int64), [handle.view.cache]
        )

    def _hand_back(
        self, scheduled: Any, batch: Batch, sampled: list[list[int]], connector_output: Any
    ) -> None:
        from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

        output = ModelRunnerOutput(
            req_ids=batch.requests,
            req_id_to_index={name: i for i, name in enumerate(batch.requests)},
            sampled_token_ids=sampled,
            kv_connector_output=connector_output,
        )
        self.scheduler.update_from_output(scheduled, output)
        count = self.settings.draft_tokens
        if count:
            drafts = [
                [self.random.randrange(2, 500) for _ in range(count)] if tokens else []
                for tokens in sampled
            ]
            self.scheduler.update_draft_token_ids(DraftTokenIds(batch.requests, drafts))

    # The host's side.

    def _compare_host_pages(self) -> None:
        """Pages that Core has come to call valid on the host hold what was written, in every layer."""
        (host_group,) = self.caches_config.host_group_ids
        manager = self.coordinator.managers[host_group]
        size = self.settings.block_size
        for name, state in self.coordinator.request_states.items():
            request = self.running.get(name)
            if request is None:
                continue
            before = self._valid_pages.setdefault(name, set())
            blocks = manager.req_to_blocks[name]
            for page in sorted(set(state.valid_pages) - before):
                end = (page + 1) * size
                if page >= len(blocks) or end > len(request.keys) or end > request.computed:
                    continue  # comes up again when its last token is computed
                before.add(page)
                self._compare_host_page(
                    name, page, blocks[page].block_id, request.keys[end - size : end]
                )
            before &= state.valid_pages

    def _compare_host_page(self, name: str, page: int, block: int, keys: np.ndarray) -> None:
        first = block * self.settings.block_size
        for layer in self.layers:
            host = layer.hisparse_cache.runtime.host_cache
            rows = host[first : first + len(keys)].contiguous().view(torch.uint8)
            wrong = (rows != row_bytes(keys, layer.number, self.row_width)).any(1).nonzero()
            if len(wrong):
                raise WrongRow(
                    f"host page {page} of request {name} (block {block}), {layer.name}: declared valid,"
                    f" but row {int(wrong[0])} is not the row written ({len(wrong)} wrong)"
                )
            self.seen["host rows"] += len(rows)

    def hot_counts(self, layer: Layer) -> tuple[int, int]:
        """References answered by hot rows, and rows loaded, of the layer's index group so far."""
        stats = layer.hisparse_cache.runtime.index_group.swap_stats.view(torch.int64)
        hits, loads = stats.tolist()
        return hits, loads

    def leaked_blocks(self) -> tuple[int, int]:
        """Device and host blocks that are not free; (0, 0) once every request is gone."""
        device, host = self.coordinator.gpu_pool, self.coordinator.get_host_block_pool()
        # The null block is never free.
        return tuple(
            pool.num_gpu_blocks - 1 - pool.get_num_free_blocks() for pool in (device, host)
        )


def drive(loop: CoreLoop, requests: int, *, max_steps: int = 5000) -> Counter[str]:
    """A random life: requests come at random, half of them with a known prefix, some are aborted.

    Returns what was seen. Raises :class:`WrongRow` for a wrong byte, ``AssertionError`` for a request that never ends
    or a block that is never given back.
    """
    chance, settings = loop.random, loop.settings
    longest = settings.max_model_len
    prefixes = [[chance.randrange(2, 500) for _ in range(longest // 2)] for _ in range(3)]
    steps = 0
    waiting = requests
    while waiting or loop.unfinished:
        assert steps < max_steps, f"{loop.unfinished} requests unfinished after {steps} steps"
        if waiting and loop.unfinished < 2 * settings.max_num_seqs and chance.random() < 0.5:
            waiting -= 1
            start = chance.choice(prefixes)[: chance.randrange(longest // 2)]
            prompt = start if chance.random() < 0.5 else []
            prompt = prompt + [
                chance.randrange(2, 500) for _ in range(chance.randrange(1, longest // 3))
            ]
            loop.add(f"request-{waiting}", prompt, chance.randrange(1, longest // 8))
        if loop.running and chance.random() < 0.01:
            loop.abort(chance.choice(list(loop.running)))
            loop.seen["aborts"] += 1
        loop.step()
        steps += 1
    for _ in range(4):  # transfers still on their way
        loop.step()
    assert loop.leaked_blocks() == (0, 0), f"blocks not given back: {loop.leaked_blocks()}"
    return loop.seen


def _rows_at(cache: Tensor, index: Tensor) -> Tensor:
    """Rows ``index`` of a paged cache, as bytes."""
    size = cache.shape[1]
    rows = cache[index.long() // size, index.long() % size]
    return rows.contiguous().view(torch.uint8).view(len(index), -1)


def _config(settings: Settings, folder: Path) -> Any:
    model = tiny_configs.glm_moe_dsa(folder, index_topk=settings.top_k)
    speculative = (
        {"method": "mtp", "num_speculative_tokens": settings.draft_tokens}
        if settings.draft_tokens
        else None
    )
    config = tiny_configs.engine_config(
        model,
        host_pool_gib=settings.host_pool_gib,
        block_size=settings.block_size,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        enable_prefix_caching=settings.prefix_caching,
        speculative_config=speculative,
        kv_cache_dtype="fp8_ds_mla" if settings.c8 else "auto",
        attention_config={
            "hisparse_config": {
                "device_buffer_size": settings.hot_size,
                "eager_host_mirror": settings.eager_host_mirror,
            }
        },
    )
    config.cache_config.kv_cache_layout = (
        "BLHNC"  # what the connector asks for, when an engine starts
    )
    return config


def _names(settings: Settings) -> list[tuple[str, bool, bool]]:
    """(layer name, leads an index group, is a draft layer)."""
    count = settings.layers + (1 if settings.draft_tokens else 0)
    return [
        (
            f"model.layers.{i}.self_attn.attn",
            i % settings.leader_every == 0 or i == settings.layers,
            i == settings.layers,
        )
        for i in range(count)
    ]


def _specs(settings: Settings) -> dict[str, Any]:
    from vllm.v1.kv_cache_interface import MLAAttentionSpec, SparseCacheRole

    specs = {}
    main: dict[str, Any] = {"dtype": torch.bfloat16}
    if settings.c8:
        main = {
            "dtype": torch.uint8,
            "cache_dtype_str": "fp8_ds_mla",
            "state_content_bytes": 656,
        }
    for name, leader, _ in _names(settings):
        specs[name] = MLAAttentionSpec(
            block_size=settings.block_size,
            num_kv_heads=1,
            head_size=576,
            cache_role=SparseCacheRole.SPARSE,
            is_index_group_leader=leader,
            **main,
        )
        if leader:
            specs[name.removesuffix("attn") + "indexer.k_cache"] = MLAAttentionSpec(
                block_size=settings.block_size,
                num_kv_heads=1,
                head_size=132,
                dtype=torch.uint8,
                cache_role=SparseCacheRole.INDEXER,
            )
    return specs


def _layers(config: Any, settings: Settings) -> list[Layer]:
    from vllm.config import set_current_vllm_config
    from vllm.v1.attention.backends.mla.index_group import (
        SparseMLAIndexGroupBuilder,
        get_sparse_mla_index_group_max_rows,
    )

    most = get_sparse_mla_index_group_max_rows(config)

    def builder() -> Any:
        shape = (settings.max_num_batched_tokens, settings.top_k)
        return SparseMLAIndexGroupBuilder(torch.full(shape, -1, dtype=torch.int32), most)

    target, draft = builder(), builder()  # target and drafter have top-k buffers of their own
    layers = []
    dtype = "fp8_ds_mla" if settings.c8 else "bfloat16"
    with set_current_vllm_config(config):
        for number, (name, leader, is_draft) in enumerate(_names(settings)):
            group, index = (draft if is_draft else target).register_layer(
                leader, config, head_size=576, kv_cache_dtype=dtype
            )
            layers.append(Layer(name, number, group, index, is_draft))
    config.compilation_config.static_forward_context.update({x.name: x for x in layers})
    return layers


def _block_tables(config: Any, caches: Any) -> Any:
    from vllm.v1.kv_cache_interface import UniformTypeKVCacheSpecs
    from vllm.v1.worker.gpu.block_table import BlockTables

    specs = [group.kv_cache_spec for group in caches.kv_cache_groups]
    first = [s.first_spec if isinstance(s, UniformTypeKVCacheSpecs) else s for s in specs]
    return BlockTables(
        [spec.block_size for spec in specs],
        config.scheduler_config.max_num_seqs,
        config.scheduler_config.max_num_batched_tokens,
        [spec.max_num_blocks_per_req(config, config.model_config.max_model_len) for spec in specs],
        torch.device("cpu"),
        slot_mapping_enabled=[spec.uses_slot_mapping for spec in first],
    )
