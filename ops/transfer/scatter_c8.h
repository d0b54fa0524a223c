// scatter_c8: cache row slots[i] = nope[i] | rope[i] | scales[i] in the order of the layout.
#pragma once

#include "common/ownership.h"
#include "common/slab.h"
#include "common/view.h"
#include "transfer/c8.h"

namespace hisparse {

// nope, rope, scales: rows of 512, 128 and 16 bytes, one a token. A slot outside the cache is skipped, the
// scales with the data. Rows are those of one part of a parallel writer, in order.
inline void scatter_c8(const Slab& nope, const Slab& rope, const Slab& scales, const Ids& slots,
                       const Slab& cache, C8Layout layout, int64_t part, int64_t parts) noexcept {
  for (int64_t i = 0; i < slots.rows; ++i) {
    const int64_t slot = slots(i);
    if (!cache.contains(slot) || !owns_row(slot, part, parts)) continue;
    char* row = cache.row(slot);
    copy_row(row, nope.row(i), kC8Latent);
    copy_row(row + layout.rope, rope.row(i), kC8RopeBytes);
    copy_row(row + layout.scales, scales.row(i), kC8ScaleBytes);
  }
}

}  // namespace hisparse
