// scatter_rows: row slots[i] of every cache = row i of its rows.
#pragma once

#include "common/ownership.h"
#include "common/slab.h"
#include "common/view.h"

namespace hisparse {

// rows[j], caches[j], j < count: rows of the same bytes; all caches have as many rows as the first. A slot
// outside them is skipped in all. Rows are those of one part of a parallel writer, in order.
inline void scatter_rows(const Slab* rows, const Slab* caches, int64_t count, const Ids& slots, int64_t part,
                         int64_t parts) noexcept {
  for (int64_t i = 0; i < slots.rows; ++i) {
    const int64_t slot = slots(i);
    if (!caches[0].contains(slot) || !owns_row(slot, part, parts)) continue;
    for (int64_t j = 0; j < count; ++j) copy_row(caches[j].row(slot), rows[j].row(i), caches[j].row_bytes);
  }
}

}  // namespace hisparse
