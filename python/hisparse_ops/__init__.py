"""HiSparse kernels: sparse-attention KV in host memory behind a small hot buffer, as PyTorch ops.

Every function here calls the op of the same name, ``torch.ops.hisparse.<name>``.
"""

from hisparse_ops._start import starts_plan
from hisparse_ops._version import __version__

if not starts_plan():
    from hisparse_ops import simt as _simt
    from hisparse_ops import triton as _triton
    from hisparse_ops._native import cpu_isa, cpu_isas, set_cpu_isa
    from hisparse_ops.gather import gather_compact, gather_plan
    from hisparse_ops.invalidate import invalidate_recycled, invalidate_written
    from hisparse_ops.registry import Backend, Op, backends, ops, require
    from hisparse_ops.resolver import (
        fill_full_visible,
        full_visible_indices,
        new_hot_state,
        reset_requests,
        residency_stats,
        resolve,
    )
    from hisparse_ops.transfer import (
        copy_pages,
        copy_resident_rows,
        copy_row_spans,
        pad_slots,
        publish_indexer_pages,
        scatter_rows,
    )
    from hisparse_ops.transfer_c8 import dequantize_c8, quantize_scatter_c8, scatter_c8
    from hisparse_ops.validation import (
        PostMortem,
        StateReport,
        ValidationError,
        check_state,
        check_values,
        is_validating,
        record,
        validate,
        validate_if_asked,
    )

    _triton.register()  # after the ops are defined
    _simt.register()
    validate_if_asked()

__all__ = [
    "Backend",
    "Op",
    "PostMortem",
    "StateReport",
    "ValidationError",
    "__version__",
    "backends",
    "check_state",
    "check_values",
    "copy_pages",
    "copy_resident_rows",
    "copy_row_spans",
    "cpu_isa",
    "cpu_isas",
    "dequantize_c8",
    "fill_full_visible",
    "full_visible_indices",
    "gather_compact",
    "gather_plan",
    "invalidate_recycled",
    "invalidate_written",
    "is_validating",
    "new_hot_state",
    "ops",
    "pad_slots",
    "publish_indexer_pages",
    "quantize_scatter_c8",
    "record",
    "require",
    "reset_requests",
    "residency_stats",
    "resolve",
    "scatter_c8",
    "scatter_rows",
    "set_cpu_isa",
    "validate",
]
