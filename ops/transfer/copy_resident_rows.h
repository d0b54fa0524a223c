// copy_resident_rows: staging row i = source row row_ids[i].
#pragma once

#include <cstdint>

#include "common/row_list.h"
#include "common/slab.h"
#include "common/view.h"

namespace hisparse {

// Staging rows [begin, end) of [0, row_ids.rows). An id outside the source reads row 0 (row0: the source has
// one then) or leaves the staged row alone.
inline void copy_resident_rows(const Slab& source, const Ids& row_ids, const Slab& staging, bool row0,
                               int64_t begin, int64_t end) noexcept {
  const RowAddresses from(source), to(staging);
  const uintptr_t first = from(0);
  RowList copies;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = row_ids(i);
    const bool inside = from.contains(row);
    copies.add(inside ? from(row) : first, to(i), inside || row0);
    if (copies.is_full()) copies.copy(source.row_bytes);
  }
  copies.copy(source.row_bytes);
}

}  // namespace hisparse
