// gather_compact: hot[hot_rows[r, c]] = host[host_rows[r, c]] for c < counts[r].
#pragma once

#include <algorithm>
#include <cstdint>

#include "gather/refill.h"

namespace hisparse {

inline int64_t compact_columns(const Refill& refill, const Ids& counts, int64_t row) noexcept {
  return std::clamp<int64_t>(counts(row), 0, refill.host_rows.cols);
}

inline int64_t compact_entries(const Refill& refill, const Ids& counts) noexcept {
  int64_t entries = 0;
  for (int64_t row = 0; row < counts.rows; ++row) entries += compact_columns(refill, counts, row);
  return entries;
}

// Copies a part's entries in row-major order: the last one to a hot row stays.
inline void gather_compact(const Refill& refill, const Ids& counts, int64_t part, int64_t parts) noexcept {
  RefillPart copies(refill, part, parts);
  for (int64_t row = 0; row < counts.rows; ++row) {
    const int64_t columns = compact_columns(refill, counts, row);
    for (int64_t col = 0; col < columns; ++col)
      copies.add(refill.host_rows(row, col), refill.hot_rows(row, col));
  }
  copies.finish();
}

}  // namespace hisparse
