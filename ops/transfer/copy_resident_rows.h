// copy_resident_rows: staging row i = source row row_ids[i].
#pragma once

#include <cstdint>

#include "common/slab.h"
#include "common/view.h"

namespace hisparse {

// Staging rows [begin, end) of [0, row_ids.rows). An id outside the source reads row 0 (row0: the source has
// one then) or leaves the staged row alone. Slabs are taken by value: as locals they stay in registers.
inline void copy_resident_rows(Slab source, Ids row_ids, Slab staging, bool row0, int64_t begin,
                               int64_t end) noexcept {
  for (int64_t i = begin; i < end; ++i) {
    int64_t row = row_ids(i);
    if (!source.contains(row)) {
      if (!row0) continue;
      row = 0;
    }
    copy_row(staging.row(i), source.row(row), source.row_bytes);
  }
}

}  // namespace hisparse
