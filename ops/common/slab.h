// A tensor of KV rows as the kernels see it: bytes, strides in bytes, no torch.
#pragma once

#include <cstdint>
#include <cstring>

namespace hisparse {

// [blocks, block_rows, row_bytes], or a flat [rows, row_bytes] as one block. The block stride may exceed
// the page (other layers lie in between); bytes between pages and between rows are never touched.
struct Slab {
  char* base = nullptr;
  int64_t blocks = 0;
  int64_t block_rows = 1;
  int64_t block_stride = 0;  // bytes
  int64_t row_stride = 0;    // bytes
  int64_t row_bytes = 0;

  int64_t rows() const noexcept { return blocks * block_rows; }
  bool contains(int64_t row) const noexcept { return row >= 0 && row < rows(); }

  // Address of a row; row must be in [0, rows()). All arithmetic is 64 bit.
  char* row(int64_t r) const noexcept {
    const int64_t block = blocks == 1 ? 0 : r / block_rows;
    return base + block * block_stride + (r - block * block_rows) * row_stride;
  }

  // Block 0 is the null block: as a page it never holds data.
  bool contains_page(int64_t block) const noexcept { return block > 0 && block < blocks; }
  char* page(int64_t block) const noexcept { return base + block * block_stride; }
};

inline void copy_row(char* destination, const char* source, int64_t bytes) noexcept {
  if (bytes > 0)
    std::memcpy(destination, source, static_cast<size_t>(bytes));  // no bytes may have no address
}

// Rows that follow each other at their own stride on either side; one memcpy where both sides have no gaps.
inline void copy_rows(char* destination, int64_t destination_stride, const char* source,
                      int64_t source_stride, int64_t rows, int64_t bytes) noexcept {
  if (rows <= 0 || bytes <= 0) return;  // an empty tensor may have no address at all
  if (destination_stride == bytes && source_stride == bytes)
    return copy_row(destination, source, rows * bytes);
  for (int64_t i = 0; i < rows; ++i)
    copy_row(destination + i * destination_stride, source + i * source_stride, bytes);
}

// The same rows as one block where pages follow each other without a gap: no division in row().
inline Slab flattened(Slab s) noexcept {
  if (s.blocks > 1 && s.block_stride == s.block_rows * s.row_stride) {
    s.block_rows *= s.blocks;
    s.blocks = 1;
  }
  return s;
}

// True when no byte of one slab is a byte of the other. Layers of one shared slab interleave: their address
// ranges overlap while their pages do not, and the columns of one row are told apart by row. May say false
// of slabs that interleave with unequal strides; never says true of slabs that share a byte.
inline bool disjoint(const Slab& a, const Slab& b) noexcept {
  auto page = [](const Slab& s) { return (s.block_rows - 1) * s.row_stride + s.row_bytes; };
  const int64_t page_a = page(a), page_b = page(b);
  if (a.rows() == 0 || b.rows() == 0 || a.row_bytes == 0 || b.row_bytes == 0) return true;
  if (a.base + (a.blocks - 1) * a.block_stride + page_a <= b.base ||
      b.base + (b.blocks - 1) * b.block_stride + page_b <= a.base)
    return true;
  auto modulo = [](int64_t value, int64_t period) { return (value % period + period) % period; };
  auto rows_apart = [&](int64_t shift) {
    if (a.row_stride != b.row_stride || a.row_stride <= 0) return false;
    shift = modulo(shift, a.row_stride);
    return a.row_bytes <= shift && shift + b.row_bytes <= a.row_stride;
  };
  // A page of b that starts `shift` bytes after one of a.
  auto pages_apart = [&](int64_t shift) { return shift >= page_a || -shift >= page_b || rows_apart(shift); };
  const int64_t shift = b.base - a.base;
  if (a.blocks == 1 && b.blocks == 1) return pages_apart(shift);
  const int64_t period = a.block_stride;
  if (period == b.block_stride && page_a <= period && page_b <= period)
    // Of all pages of b, only the next one and the one before can reach into a page of a.
    return pages_apart(modulo(shift, period)) && pages_apart(modulo(shift, period) - period);
  // Every block starts on the same phase of the row stride.
  return a.row_stride > 0 && a.block_stride % a.row_stride == 0 && b.block_stride % a.row_stride == 0 &&
         rows_apart(shift);
}

}  // namespace hisparse
