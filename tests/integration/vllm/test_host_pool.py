"""Host pools: alignment, registration through a real C library, refusals, and exact release. Needs no vLLM."""

from __future__ import annotations

import gc
import itertools
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hisparse_vllm import host_pool, registration
from hisparse_vllm.host_pool import HostPool
from hisparse_vllm.registration import PAGE, Acl, HostMappingError, Tensor

# A runtime that writes down its calls, in C, so that argument counts and widths are the compiler's.
STUB = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static void say(const char* call, void* p, unsigned long long size, unsigned flag) {
  FILE* f = fopen(getenv("ACL_STUB_LOG"), "a");
  fprintf(f, "%s %p %llu %u\n", call, p, size, flag);
  fclose(f);
}
static int refuse(const char* call) {
  const char* r = getenv("ACL_STUB_REFUSE");
  static int left = -1;
  if (!r || strncmp(r, call, strlen(call)) || r[strlen(call)] != ':') return 0;
  if (left < 0) left = atoi(r + strlen(call) + 1);
  return left-- > 0 ? 0 : 107000;
}
#ifndef NO_V2
int aclrtHostRegisterV2(void* p, uint64_t size, uint32_t flag) {
  say("registerV2", p, size, flag);
  return refuse("registerV2");
}
int aclrtHostGetDevicePointer(void* p, void** device, uint32_t flag) {
  say("pointer", p, 0, flag);
  *device = getenv("ACL_STUB_NULL") ? 0 : (char*)p + (1ull << 44);
  return refuse("pointer");
}
#endif
int aclrtHostRegister(void* p, uint64_t size, int type, void** device) {
  say("register", p, size, (unsigned)type);
  *device = (char*)p + (1ull << 45);
  return refuse("register");
}
#ifndef NO_UNREGISTER
int aclrtHostUnregister(void* p) {
  say("unregister", p, 0, 0);
  return refuse("unregister");
}
#endif
"""

Runtime = Callable[..., Acl]


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runtime:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to build the stand-in runtime with")
    log = tmp_path / "calls"
    monkeypatch.setenv("ACL_STUB_LOG", str(log))
    log.touch()

    def build(*defines: str) -> Acl:
        source = tmp_path / "acl.c"
        source.write_text(STUB)
        library = tmp_path / f"lib{len(list(tmp_path.iterdir()))}.so"
        options = [f"-D{define}" for define in defines]
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, *options], check=True)
        return Acl(str(library))

    return build


def calls(tmp_path: Path) -> list[list[str]]:
    return [line.split() for line in (tmp_path / "calls").read_text().splitlines()]


def test_a_pool_is_registered_and_let_go(runtime: Runtime, tmp_path: Path) -> None:
    pool = HostPool(3 * PAGE + 5, runtime())
    assert pool.address % PAGE == 0 and pool.tensor.shape == (3 * PAGE + 5,)
    pool.tensor.fill_(7)
    assert pool.device_address(pool.address + 100, 50) == pool.address + 100 + (1 << 44)
    pool.close()
    pool.close()
    assert pool.closed
    address = hex(pool.address)
    assert calls(tmp_path) == [
        ["registerV2", address, str(4 * PAGE), "2"],  # whole pages, MAPPED
        ["pointer", address, "0", "0"],
        ["unregister", address, "0", "0"],
    ]


def test_an_old_runtime_takes_four_arguments(runtime: Runtime, tmp_path: Path) -> None:
    pool = HostPool(PAGE, runtime("NO_V2"))
    assert pool.device_address(pool.address, PAGE) == pool.address + (1 << 45)
    pool.close()
    assert [c[0] for c in calls(tmp_path)] == ["register", "unregister"]
    assert calls(tmp_path)[0][2:] == [str(PAGE), "0"]


@pytest.mark.parametrize(
    ("refusal", "message", "made"),
    [
        ("registerV2:0", "aclrtHostRegisterV2 must succeed, got error 107000 for", []),
        (
            "registerV2:2",
            "aclrtHostRegisterV2 must succeed, got error 107000 for",
            ["unregister"] * 2,
        ),
        (
            "pointer:1",
            "aclrtHostGetDevicePointer must succeed, got error 107000",
            ["unregister"] * 2,
        ),
    ],
)
def test_a_refusal_leaves_nothing_registered(
    refusal: str,
    message: str,
    made: list[str],
    runtime: Runtime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ACL_STUB_REFUSE", refusal)
    acl = runtime()
    with pytest.raises(HostMappingError, match=message):
        HostPool(8 * PAGE, acl, limit=2 * PAGE)
    undone = [c for c in calls(tmp_path) if c[0] == "unregister"]
    assert [c[0] for c in undone] == made
    registered = [c[1] for c in calls(tmp_path) if c[0] == "registerV2"][: len(made)]
    assert sorted(c[1] for c in undone) == sorted(registered)


def test_a_null_device_address_is_refused(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACL_STUB_NULL", "1")
    with pytest.raises(HostMappingError, match="must map the host pool, got a null device address"):
        HostPool(PAGE, runtime())
    assert calls(tmp_path)[-1][0] == "unregister"


def test_a_pool_that_is_dropped_is_let_go(runtime: Runtime, tmp_path: Path) -> None:
    pool = HostPool(PAGE, runtime())
    view = pool.tensor[10:20]
    del pool
    gc.collect()
    assert calls(tmp_path)[-1][0] == "unregister"
    view.fill_(1)  # the memory lives as long as a view of it


def test_a_pool_left_at_exit_is_let_go(runtime: Runtime, tmp_path: Path) -> None:
    acl = runtime()
    code = (
        "from hisparse_vllm.host_pool import HostPool\n"
        "from hisparse_vllm.registration import Acl\n"
        f"pool = HostPool(4096, Acl({acl._lib._name!r}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [c[0] for c in calls(tmp_path)] == ["registerV2", "pointer", "unregister"]


def test_probe(runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime().probe()
    assert [c[0] for c in calls(tmp_path)] == ["registerV2", "pointer", "unregister"]
    monkeypatch.setenv("ACL_STUB_REFUSE", "pointer:0")
    with pytest.raises(HostMappingError, match="aclrtHostGetDevicePointer"):
        runtime().probe()


def test_a_runtime_that_is_not_there_or_not_whole(runtime: Runtime, tmp_path: Path) -> None:
    with pytest.raises(HostMappingError, match=r"must be loadable .* got .*no-such"):
        Acl(str(tmp_path / "no-such.so"))
    with pytest.raises(HostMappingError, match="must have aclrtHostUnregister"):
        runtime("NO_UNREGISTER")


@pytest.mark.parametrize(("address", "size"), [(PAGE + 8, PAGE), (PAGE, PAGE - 1), (PAGE, 0)])
def test_only_whole_pages_are_registered(address: int, size: int, runtime: Runtime) -> None:
    with pytest.raises(ValueError, match="must be whole pages of 4096 bytes"):
        runtime().map(address, size)


def test_ranges_cut_no_block() -> None:
    """Random pools: every cut is a page and a block boundary, every range within the limit, all of it covered."""
    chance = random.Random(0)
    tried = cut = 0
    for _ in range(400):
        blocks = chance.randrange(1, 40)
        tensors, end = [], 0
        for _ in range(chance.randrange(1, 6)):
            block_bytes = 16 * chance.choice([41 * 16, 41 * 64, 72 * 16, 72 * 64, 1024])
            tensors.append(Tensor(end, blocks, block_bytes))
            end = tensors[-1].end
        size = -(-end // PAGE) * PAGE
        limit = PAGE * chance.randrange(50, 400)
        tried += 1
        try:
            made = registration.ranges(size, tensors, limit)
        except ValueError as error:
            assert "a host block must fit a registration" in str(error)
            continue
        cut += len(made) > 1
        assert made[0][0] == 0 and made[-1][1] == size
        for (_, a), (b, _) in itertools.pairwise(made):
            assert a == b and a % PAGE == 0
            for t in tensors:
                assert not t.offset < a < t.end or (a - t.offset) % t.block_bytes == 0
        assert all(0 < e - s <= limit for s, e in made)
    assert tried == 400 and cut > 100


def test_ranges_refuse_part_of_a_page() -> None:
    with pytest.raises(ValueError, match="must be whole pages of 4096 bytes, got 4097"):
        registration.ranges(4097, [])


def test_more_than_there_is_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_pool, "available_memory", lambda: 8 << 30)
    with pytest.raises(
        ValueError,
        match=r"host_pool_gib must fit the 8.0 GiB of memory that is available on this host, got 64.0 GiB",
    ):
        HostPool(64 << 30, registration.Unmapped())
    with pytest.raises(ValueError, match="must have at least one byte, got 0"):
        HostPool(0, registration.Unmapped())


def test_available_memory_is_a_sensible_number() -> None:
    assert 1 << 20 < host_pool.available_memory() < 1 << 50


def test_core_takes_and_gives_back_by_address() -> None:
    tensor, registered = host_pool.allocate(10_000)
    assert tensor.data_ptr() == registered.data_ptr() and tensor.data_ptr() % PAGE == 0
    here = torch.device("cpu")
    assert host_pool.device_address(tensor.data_ptr() + 3, 5, here) == tensor.data_ptr() + 3
    assert host_pool.release(tensor.data_ptr()) == 0
    assert host_pool.release(tensor.data_ptr()) == 1
    assert host_pool.device_address(tensor.data_ptr(), 5, here) is None
