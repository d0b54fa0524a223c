"""copy_row_spans: field cases, addresses, order of writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import hisparse_ops
from hisparse_ops import copy_row_spans


@pytest.fixture
def restore_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_only_written_rows_are_mirrored_and_none_is_skipped() -> None:
    """Rows 3..6 of page 1 are scheduled, the forward wrote two of them: slots ``[-1, 67, 68, -1]``.

    The window only moves forward, so a row left out would stay stale for ever.
    """
    block_size, width, host_block = 64, 656, 5
    device = torch.randint(1, 256, (3, block_size, width), dtype=torch.uint8)
    host = torch.zeros(8 * block_size, width, dtype=torch.uint8)
    slots = torch.tensor([-1, 67, 68, -1])
    host_rows = host_block * block_size + slots % block_size
    copy_row_spans([device], [host], torch.stack([slots, host_rows, torch.ones_like(slots)], 1))
    written = host.any(1).nonzero()[:, 0]
    assert written.tolist() == [host_block * 64 + 3, host_block * 64 + 4]
    assert torch.equal(host[written], device[1, 3:5])


def test_two_layers_in_one_storage_come_back_as_they_were() -> None:
    """Views that ignored the layer offset let later layers overwrite earlier ones (vllm #57019)."""
    device = torch.zeros(6, 2, 8, 656, dtype=torch.uint8)
    device[:, 0], device[:, 1] = 3, 5
    host = torch.zeros(2, 40, 656, dtype=torch.uint8)
    layers = [device[:, 0], device[:, 1]]
    copy_row_spans(layers, list(host), torch.tensor([[8, 16, 20]]))
    assert (host[0, 16:36] == 3).all() and (host[1, 16:36] == 5).all()
    assert not host[:, :16].any() and not host[:, 36:].any()
    device.zero_()
    copy_row_spans(list(host), layers, torch.tensor([[16, 24, 20]]))
    flat = [layer.flatten(0, 1) for layer in layers]
    for layer, pattern in zip(flat, (3, 5), strict=True):
        assert (layer[24:44] == pattern).all()
        assert not layer[:24].any() and not layer[44:].any()


def test_all_layers_bound_to_the_base_offset_are_refused() -> None:
    """The same fault seen before it writes anything."""
    device = torch.zeros(6, 2, 8, 16, dtype=torch.uint8)
    host = torch.ones(2, 40, 16, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"destinations\[1\] must not overlap destinations\[0\]"):
        copy_row_spans(list(host), [device[:, 0], device[:, 0]], torch.tensor([[0, 0, 9]]))
    assert not device.any()


def test_values_and_scales_of_a_page_are_two_copies() -> None:
    """Block of 4 rows, 576 + 8 bytes, all values before all scales (vllm #53592)."""
    rows, value, scale = 4, 576, 8
    stride = rows * (value + scale)

    def regions(pages: Tensor) -> list[Tensor]:
        values = pages.as_strided((len(pages), rows, value), (stride, value, 1))
        scales = pages.as_strided((len(pages), rows, scale), (stride, scale, 1), rows * value)
        return [values, scales]

    device = torch.randint(1, 256, (4, stride), dtype=torch.uint8)
    host = torch.zeros(6, stride, dtype=torch.uint8)
    copy_row_spans(regions(device), regions(host), torch.tensor([[6, 10, 5]]))
    for mine, theirs in zip(regions(host), regions(device), strict=True):
        expected = torch.zeros_like(mine).flatten(0, 1)
        expected[10:15] = theirs.flatten(0, 1)[6:11]
        assert torch.equal(mine.flatten(0, 1), expected)


def test_columns_of_packed_rows_are_separate_destinations() -> None:
    """Latent, rope and scales restored into 656-byte rows, in pages 42,017 bytes apart."""
    stride = 64 * 656 + 33
    pages = torch.zeros(3, stride, dtype=torch.uint8)
    widths, start, columns = (512, 128, 16), 0, []
    for width in widths:
        columns.append(pages.as_strided((3, 64, width), (stride, 656, 1), start))
        start += width
    host = [torch.randint(1, 256, (100, w), dtype=torch.uint8) for w in widths]
    copy_row_spans(host, columns, torch.tensor([[10, 60, 80]], dtype=torch.int32))
    packed = pages.as_strided((3, 64, 656), (stride, 656, 1)).flatten(0, 1)
    assert torch.equal(packed[60:140], torch.cat(host, 1)[10:90])
    assert not packed[:60].any() and not packed[140:].any() and not pages[:, -33:].any()


@pytest.mark.parametrize("width", [512, 656, 1152])
def test_row_offset_in_64_bit(tmp_path: Path, width: int) -> None:
    """Either side past 2^31 and 2^32 bytes (vllm #57602)."""
    rows = 2**32 // width + 4
    file = torch.from_file(
        str(tmp_path / "rows"), shared=True, size=rows * width, dtype=torch.uint8
    )
    far = file.view(rows, width)
    near = torch.arange(1, 9, dtype=torch.uint8)[:, None].expand(8, width).contiguous()
    starts = [2**31 // width - 1, 2**32 // width - 1]
    out = [[2 * i, start, 2] for i, start in enumerate(starts)]
    copy_row_spans([near], [far], torch.tensor(out))
    back = torch.zeros_like(near)
    copy_row_spans([far], [back], torch.tensor(out)[:, [1, 0, 2]])
    assert torch.equal(back[:4], near[:4]) and not back[4:].any()
    assert far[starts[0] : starts[0] + 2, -1].tolist() == [1, 2]
    assert far[starts[1] : starts[1] + 2, 0].tolist() == [3, 4]


def test_block_offset_in_64_bit(tmp_path: Path) -> None:
    gap = 2**30
    file = torch.from_file(str(tmp_path / "slab"), shared=True, size=6 * gap, dtype=torch.uint8)
    slab = file.as_strided((6, 4, 132), (gap, 132, 1))
    rows = torch.randint(1, 256, (24, 132), dtype=torch.uint8)
    copy_row_spans([rows], [slab], torch.tensor([[0, 0, 24]]))
    for block in range(6):
        assert torch.equal(slab[block], rows[4 * block : 4 * block + 4])


def test_a_span_longer_than_memory_ends_at_once() -> None:
    source, to = torch.ones(4, 8, dtype=torch.uint8), torch.zeros(6, 8, dtype=torch.uint8)
    top = 2**63 - 1
    spans = [
        [0, 1, top],
        [top, 0, top],
        [0, top, top],
        [-top - 1, -top - 1, top],
        [1 - top, 0, top],
    ]
    copy_row_spans([source], [to], torch.tensor(spans))
    assert to[:, 0].tolist() == [0, 1, 1, 1, 1, 0]


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("layers", [1, 2, 5])
def test_the_later_span_wins_on_any_number_of_threads(
    threads: int, layers: int, restore_threads: None
) -> None:
    """3,000 spans over 400 rows, some MB: every row is written some 50 times."""
    torch.set_num_threads(threads)
    gen = torch.Generator().manual_seed(layers)
    rows, source_rows, width = 400, 500, 64
    spans = torch.stack(
        [
            torch.randint(-5, source_rows, (3000,), generator=gen),
            torch.randint(-5, rows, (3000,), generator=gen),
            torch.randint(0, 15, (3000,), generator=gen),
        ],
        1,
    )
    source = torch.randint(0, 256, (layers, source_rows, width), dtype=torch.uint8, generator=gen)
    slab = torch.zeros(25, layers, 16, width, dtype=torch.uint8)
    copy_row_spans(list(source), [slab[:, layer] for layer in range(layers)], spans)
    last = torch.full((rows,), -1)
    for start, to, count in spans.tolist():
        for i in range(count):
            if 0 <= start + i < source_rows and 0 <= to + i < rows:
                last[to + i] = start + i
    for layer in range(layers):
        got = slab[:, layer].flatten(0, 1)
        assert torch.equal(got, source[layer][last])


def test_spans_are_read_again_by_every_call() -> None:
    """Tensors at fixed addresses, another content: what a graph replay relies on (vllm #56158)."""
    source = torch.arange(1, 9, dtype=torch.uint8)[:, None].expand(8, 16).contiguous()
    to, spans = torch.zeros(8, 16, dtype=torch.uint8), torch.zeros(1, 3, dtype=torch.int32)
    for row in (2, 5, 0):
        to.zero_()
        spans[0] = torch.tensor([row, 7 - row, 1])
        copy_row_spans([source], [to], spans)
        assert to[7 - row, 0] == row + 1 and int(to.any(1).sum()) == 1


def test_one_side_may_stay_on_the_host() -> None:
    """Meta stands in for a device: either side on the CPU, the spans where the op runs."""
    host = torch.zeros(8, 16, dtype=torch.uint8)
    device, spans = host.to("meta"), torch.zeros(2, 3, dtype=torch.int64, device="meta")
    check = hisparse_ops.ops()["copy_row_spans"].check
    check([device, device], [host, host], spans)
    check([host, host], [device, device], spans)
    with pytest.raises(ValueError, match=r"^copy_row_spans: spans must be on meta, got cpu$"):
        check([host], [device], torch.zeros(2, 3, dtype=torch.int64))


def test_compiles_without_a_copy_of_the_destination() -> None:
    source, to = torch.randn(2, 8, 16), torch.zeros(2, 8, 16)
    address = to.data_ptr()

    def step(spans: Tensor) -> None:
        copy_row_spans(list(source), list(to), spans)

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    for rows in (2, 3):
        to.zero_()
        compiled(torch.tensor([[1, 4, rows]]))
        assert torch.equal(to[:, 4 : 4 + rows], source[:, 1 : 1 + rows])
        assert not to[:, :4].any() and to.data_ptr() == address
