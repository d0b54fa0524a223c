"""Every op inside torch.compile and torch.export: what it writes is kept, seen and in place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import hisparse_ops
from hisparse_ops.testing import samples
from hisparse_ops.testing.buffers import assert_same_buffers, clone_args, tensors
from hisparse_ops.testing.samples import Sample


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch._dynamo.reset()


class Call(torch.nn.Module):
    """One call of an op; what is not a tensor stays out of the graph's inputs."""

    def __init__(self, op: str, args: dict[str, Any]) -> None:
        super().__init__()
        self.op = hisparse_ops.ops()[op].call
        self.constants = {n: v for n, v in args.items() if not tensor_like(v)}

    def forward(self, args: dict[str, Any]) -> Tensor:
        self.op(**args, **self.constants)
        return torch.ones(())


def tensor_like(value: Any) -> bool:
    return isinstance(value, Tensor) or (
        isinstance(value, list) and all(isinstance(v, Tensor) for v in value)
    )


def inputs(args: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in args.items() if tensor_like(value)}


def flat_names(op: str, args: dict[str, Any]) -> list[str]:
    """Written tensors by name, list items numbered."""
    names = []
    for name in hisparse_ops.ops()[op].mutates:
        value = args.get(name)
        if isinstance(value, list):
            names += [f"{name}[{i}]" for i in range(len(value))]
        elif value is not None:
            names.append(name)
    return names


def largest_sample(op: str) -> Sample:
    """The default sample that gives the most arguments, each in a storage of its own.

    torch.export has no form for two mutated inputs of one storage (layers of a shared slab, say).
    """

    def arguments(sample: Sample) -> int:
        args = sample.args()
        storages = [t.untyped_storage().data_ptr() for _, t in tensors(args) if t.numel()]
        shared = len(storages) != len(set(storages))
        return -1 if shared else sum(v is not None for v in args.values())

    return max(samples.samples(op), key=arguments)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_whole(op: str, dynamic: bool) -> None:
    """One graph without a break, the same bytes as eager, again with other contents at the same addresses."""
    sample = largest_sample(op)
    args = sample.args()
    call = torch.compile(
        Call(op, args), fullgraph=True, dynamic=dynamic, backend="aot_eager_decomp_partition"
    )
    for _ in range(2):
        expected = clone_args(args)
        hisparse_ops.ops()[op].call(**expected)
        call(inputs(args))
        assert_same_buffers(args, expected)


def test_exports_with_its_mutations(op: str) -> None:
    args = largest_sample(op).args()
    expected = clone_args(args)
    hisparse_ops.ops()[op].call(**expected)

    program = torch.export.export(Call(op, args), (inputs(args),), strict=False)
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert hisparse_ops.ops()[op].call in targets
    program.module()(inputs(args))
    assert_same_buffers(args, expected)

    functional = program.run_decompositions()
    kinds = [spec.kind.name for spec in functional.graph_signature.output_specs]
    assert kinds.count("USER_INPUT_MUTATION") == len(flat_names(op, args))
    calls = [n for n in functional.graph.nodes if "auto_functionalized" in str(n.target)]
    assert [node.args[0] for node in calls] == [hisparse_ops.ops()[op].call]


def test_reads_no_value_on_the_host(op: str) -> None:
    """Every sample traces with fake tensors, which have no values to read."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    for sample in samples.samples(op):
        args = sample.args()
        with FakeTensorMode(allow_non_fake_inputs=False) as mode:

            def fake(value: Any, mode: Any = mode) -> Any:
                if isinstance(value, Tensor):
                    return mode.from_tensor(value)
                return [fake(v) for v in value] if isinstance(value, list) else value

            hisparse_ops.ops()[op].call(**{n: fake(v) for n, v in args.items()})


def test_allocates_nothing_once_warm(op: str) -> None:
    """Outputs belong to the caller: after the first call no tensor memory is asked for."""
    args = largest_sample(op).args()
    call = hisparse_ops.ops()[op].call
    call(**args)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        call(**args)
    asked = sum(max(0, event.self_cpu_memory_usage) for event in profile.key_averages())
    assert asked == 0
