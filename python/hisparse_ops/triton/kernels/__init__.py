"""Triton kernels: one source for Ascend (triton-ascend) and CUDA.

Nothing here imports torch or the rest of the package, so that the kernels compile where neither is installed. Every
module ends with ``VARIANTS``: the specialisations that its launcher asks for.

Rules, from what Ascend's vector cores are good at:

* a program takes every ``num_programs``-th piece of the work, so the grid never exceeds the cores;
* rows move as lanes (int32 where alignment allows), a row a time, contiguous; index tables are read as scalars;
* int64 before every multiply of an index, on scalars only; tables stay int32 in vectors;
* blocks are powers of two with a mask; no fp8, no fp64, no sort, no pointer casts, no autotune.
"""
