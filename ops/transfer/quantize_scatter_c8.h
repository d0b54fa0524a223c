// quantize_scatter_c8: cache row slots[i] = codes of latent[i] | rope[i] | their scales, in the order of the
// layout.
#pragma once

#include "common/ownership.h"
#include "common/slab.h"
#include "common/view.h"
#include "transfer/quantize_c8.h"

namespace hisparse {

// latent: rows of 512 elements of the type `quantize` reads; rope: rows of 128 bytes. Codes and scales go
// straight to the cache. A slot outside it is skipped. Rows are those of one part of a parallel writer.
inline void quantize_scatter_c8(const Slab& latent, const Slab& rope, const Ids& slots, const Slab& cache,
                                C8Layout layout, QuantizeRow quantize, int64_t part, int64_t parts) noexcept {
  for (int64_t i = 0; i < slots.rows; ++i) {
    const int64_t slot = slots(i);
    if (!cache.contains(slot) || !owns_row(slot, part, parts)) continue;
    char* row = cache.row(slot);
    quantize(latent.row(i), row, row + layout.scales);
    copy_row(row + layout.rope, rope.row(i), kC8RopeBytes);
  }
}

}  // namespace hisparse
