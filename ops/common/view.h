// Tables and lists as the kernels see them: a pointer, sizes and strides in elements, no torch.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/slab.h"

namespace hisparse {

// A 2-D table of T whose rows are contiguous. `given` is false where an optional argument was left out; the
// base says nothing of it, since a tensor without elements may have none.
template <class T>
struct Table {
  T* base = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;
  bool given = false;
  explicit operator bool() const noexcept { return given; }
  T* row(int64_t r) const noexcept { return base + r * stride; }
};

// A 1-D tensor of T.
template <class T>
struct Vector {
  T* base = nullptr;
  int64_t size = 0;
  int64_t stride = 1;
  bool given = false;
  explicit operator bool() const noexcept { return given; }
  T& operator[](int64_t i) const noexcept { return base[i * stride]; }
};

// Row ids or slots: int32 or int64 without a cast by the caller; a list may be strided.
struct Ids {
  const void* base = nullptr;
  int64_t rows = 0;
  int64_t cols = 1;
  int64_t row_stride = 0;
  int64_t col_stride = 0;
  bool wide = false;
  bool given = false;

  explicit operator bool() const noexcept { return given; }
  int64_t operator()(int64_t row, int64_t col = 0) const noexcept {
    const int64_t at = row * row_stride + col * col_stride;
    return wide ? static_cast<const int64_t*>(base)[at] : static_cast<const int32_t*>(base)[at];
  }
};

// The memory of a table or list, for disjoint().
inline Slab bytes_of(const Ids& ids) noexcept {
  const int64_t item = ids.wide ? 8 : 4;
  Slab s;
  s.base = static_cast<char*>(const_cast<void*>(ids.base));
  s.blocks = 1;
  s.block_rows = ids.cols > 0 ? ids.rows : 0;
  s.row_stride = ids.row_stride * item;
  s.row_bytes = ids.cols > 0 ? ((ids.cols - 1) * ids.col_stride + 1) * item : 0;
  return s;
}

template <class T>
Slab bytes_of(const Vector<T>& list) noexcept {
  constexpr int64_t item = sizeof(T);
  return {reinterpret_cast<char*>(list.base), 1, list.size, 0, list.stride * item, item};
}

template <class T>
Slab bytes_of(const Table<T>& table) noexcept {
  constexpr int64_t item = sizeof(T);
  return {reinterpret_cast<char*>(const_cast<std::remove_const_t<T>*>(table.base)),
          1,
          table.rows,
          0,
          table.stride * item,
          table.cols * item};
}

}  // namespace hisparse
