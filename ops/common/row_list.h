// Rows by address: where they stand in a slab, and copies of many of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "common/slab.h"

namespace hisparse {

// Addresses of the rows of a slab, without a division where a page has a power of two of rows.
class RowAddresses {
 public:
  explicit RowAddresses(const Slab& whole) noexcept {
    const Slab slab = flattened(whole);
    base_ = reinterpret_cast<uintptr_t>(slab.base);
    rows_ = static_cast<uint64_t>(slab.rows());
    row_stride_ = slab.row_stride;
    block_rows_ = slab.block_rows;
    gap_ = slab.block_stride - slab.block_rows * slab.row_stride;
    if (slab.blocks <= 1) shift_ = 63;
    else if ((block_rows_ & (block_rows_ - 1)) == 0) shift_ = __builtin_ctzll(block_rows_);
  }

  bool contains(int64_t row) const noexcept { return static_cast<uint64_t>(row) < rows_; }

  // As an integer, so that it may be formed of any row; it is an address only of one that the slab contains.
  uintptr_t operator()(int64_t row) const noexcept {
    const uint64_t block =
        shift_ >= 0 ? static_cast<uint64_t>(row) >> shift_ : static_cast<uint64_t>(row) / block_rows_;
    return base_ + static_cast<uint64_t>(row) * row_stride_ + block * gap_;
  }

 private:
  uintptr_t base_;
  uint64_t rows_;
  uint64_t row_stride_;
  uint64_t block_rows_;
  uint64_t gap_;  // bytes from the end of a page to the next one
  int shift_ = -1;
};

// Up to kSize copies that wait to be done together, so that each row is asked for while others are copied.
class RowList {
 public:
  static constexpr int64_t kSize = 512;

  // Written whether or not it counts: no branch on what the indices hold. `from` 0 stands for a row of zeros.
  void add(uintptr_t from, uintptr_t to, bool counts) noexcept {
    from_[size_] = from;
    to_[size_] = to;
    size_ += counts;
  }
  bool is_full() const noexcept { return size_ == kSize; }

  // In the order of the list; empties it.
  void copy(int64_t bytes) noexcept {
    const int64_t size = bytes > 0 ? size_ : 0;
    size_ = 0;
    for (int64_t i = 0; i < std::min(kAhead, size); ++i) ask_for(from_[i], bytes);
    for (int64_t i = 0; i < size; ++i) {
      if (i + kAhead < size) ask_for(from_[i + kAhead], bytes);
      char* to = reinterpret_cast<char*>(to_[i]);
      if (from_[i] != 0) std::memcpy(to, reinterpret_cast<const char*>(from_[i]), static_cast<size_t>(bytes));
      else std::memset(to, 0, static_cast<size_t>(bytes));
    }
  }

 private:
  static constexpr int64_t kAhead = 8;

  static void ask_for(uintptr_t row, int64_t bytes) noexcept {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(reinterpret_cast<const char*>(row) + at);
  }

  uintptr_t from_[kSize + 1];
  uintptr_t to_[kSize + 1];
  int64_t size_ = 0;
};

}  // namespace hisparse
