// gather_plan: hot[hot_rows[r, c]] = host[host_rows[r, c]] where miss_mask[r, c] != 0, and
// attention_indices[r, c] = (p / block_size) * block_stride + p % block_size with p = hot_rows[r, c].
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "gather/refill.h"

namespace hisparse {

struct GatherPlan {
  Refill refill;
  Ids miss_mask;  // [rows, top_k]
  Ids states;     // [rows], or not given: no row is padding

  int64_t rows() const noexcept { return miss_mask.rows; }
  bool is_padding(int64_t row) const noexcept { return states && states(row) < 0; }
};

// First column from `col` on whose mask is not 0, or `columns`.
template <class T>
int64_t next_miss(const T* mask, int64_t stride, int64_t col, int64_t columns) noexcept {
  // Most entries hit: whole vectors of zeros are stepped over.
  constexpr int64_t kStep = 16;
  for (; stride == 1 && col + kStep <= columns; col += kStep) {
    T any = 0;
    for (int64_t i = 0; i < kStep; ++i) any |= mask[col + i];
    if (any != 0) break;
  }
  while (col < columns && mask[col * stride] == 0) ++col;
  return col;
}

template <class T, class Visit>
void visit_misses(const GatherPlan& plan, const Visit& visit) noexcept {
  const Ids& ids = plan.miss_mask;
  for (int64_t row = 0; row < ids.rows; ++row) {
    if (plan.is_padding(row)) continue;
    const T* mask = static_cast<const T*>(ids.base) + row * ids.row_stride;
    const auto next = [&](int64_t col) { return next_miss(mask, ids.col_stride, col, ids.cols); };
    for (int64_t col = next(0); col < ids.cols; col = next(col + 1)) visit(row, col);
  }
}

template <class Visit>
void visit_misses(const GatherPlan& plan, const Visit& visit) noexcept {
  if (plan.miss_mask.wide) visit_misses<int64_t>(plan, visit);
  else visit_misses<int32_t>(plan, visit);
}

inline int64_t count_misses(const GatherPlan& plan) noexcept {
  int64_t misses = 0;
  visit_misses(plan, [&](int64_t, int64_t) { ++misses; });
  return misses;
}

// Copies a part's misses in row-major order: the last one to a hot row stays.
inline void gather_plan(const GatherPlan& plan, int64_t part, int64_t parts) noexcept {
  const Refill& refill = plan.refill;
  RefillPart copies(refill, part, parts);
  visit_misses(plan, [&](int64_t row, int64_t col) {
    copies.add(refill.host_rows(row, col), refill.hot_rows(row, col));
  });
  copies.finish();
}

// Physical rows to the rows that attention counts. The slab's last row is known to fit int32 either way, so
// 32 bits are enough once a row is known to be one of the slab: twice the lanes.
class AttentionRows {
 public:
  AttentionRows(const Slab& hot, int64_t block_stride) noexcept
      : rows_(static_cast<uint32_t>(hot.rows())),
        block_rows_(static_cast<uint32_t>(std::max<int64_t>(1, hot.block_rows))),
        gap_(static_cast<uint32_t>(block_stride - hot.block_rows)) {
    if ((block_rows_ & (block_rows_ - 1)) == 0) shift_ = __builtin_ctz(block_rows_);
  }

  template <class T>
  void write(const T* from, int64_t stride, int32_t* to, int64_t count) const noexcept {
    if (shift_ < 0) return write(from, stride, to, count, [&](uint32_t row) { return row / block_rows_; });
    const auto shifted = [&](uint32_t row) { return row >> shift_; };
    if (stride == 1) write(from, 1, to, count, shifted);
    else write(from, stride, to, count, shifted);
  }

 private:
  template <class T, class Block>
  void write(const T* from, int64_t stride, int32_t* to, int64_t count, const Block& block) const noexcept {
    using Unsigned = std::make_unsigned_t<T>;
    for (int64_t i = 0; i < count; ++i) {
      const Unsigned row = static_cast<Unsigned>(from[i * stride]);  // a negative one is past the slab
      const uint32_t index = static_cast<uint32_t>(row) + block(static_cast<uint32_t>(row)) * gap_;
      to[i] = row < rows_ ? static_cast<int32_t>(index) : -1;
    }
  }

  uint32_t rows_;
  uint32_t block_rows_;
  uint32_t gap_;    // rows between the end of a page and the start of the next one
  int shift_ = -1;  // a power of two needs no division
};

// Writes entries [begin, end) of the flat [rows, top_k] grid, so that one long row is shared out too.
template <class T>
void write_attention(const GatherPlan& plan, const AttentionRows& attention, const Table<int32_t>& out,
                     int64_t begin, int64_t end) noexcept {
  const Ids& ids = plan.refill.hot_rows;
  for (int64_t row = begin / out.cols; begin < end; ++row) {
    const int64_t first = begin - row * out.cols;
    const int64_t last = std::min(out.cols, end - row * out.cols);
    const T* from = static_cast<const T*>(ids.base) + row * ids.row_stride;
    int32_t* to = out.row(row);
    if (plan.is_padding(row)) std::fill(to + first, to + last, -1);
    else attention.write(from + first * ids.col_stride, ids.col_stride, to + first, last - first);
    begin = (row + 1) * out.cols;
  }
}

inline void write_attention(const GatherPlan& plan, const AttentionRows& attention, const Table<int32_t>& out,
                            int64_t begin, int64_t end) noexcept {
  if (plan.refill.hot_rows.wide) write_attention<int64_t>(plan, attention, out, begin, end);
  else write_attention<int32_t>(plan, attention, out, begin, end);
}

}  // namespace hisparse
