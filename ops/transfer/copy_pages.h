// copy_pages: destination page d = source page s for every pair (s, d), in order.
#pragma once

#include <cstdint>

#include "common/ownership.h"
#include "common/slab.h"
#include "common/view.h"

namespace hisparse {

// The pages that `share` of `shares` owns. Every share reads every pair, so that of two pairs with the same
// destination the later one wins. Both slabs have the same block_rows and row_bytes.
inline void copy_pages(const Slab& source, const Slab& destination, const Ids& page_pairs, int64_t share,
                       int64_t shares) noexcept {
  for (int64_t i = 0; i < page_pairs.rows; ++i) {
    const int64_t from = page_pairs(i, 0), to = page_pairs(i, 1);
    if (!source.contains_page(from) || !destination.contains_page(to) || !owns_row(to, share, shares))
      continue;
    copy_rows(destination.page(to), destination.row_stride, source.page(from), source.row_stride,
              source.block_rows, source.row_bytes);
  }
}

}  // namespace hisparse
