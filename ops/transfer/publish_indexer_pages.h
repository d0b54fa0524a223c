// publish_indexer_pages: slab page logical_blocks[i] = source page source_blocks[i], its first rows only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/ownership.h"
#include "common/slab.h"
#include "common/view.h"

namespace hisparse {

// The pages that `part` of `parts` owns; every part reads the whole list, so the last of two entries with the
// same logical block wins. Without row_counts (null) whole pages are published. Both sides have the same
// block_rows and row_bytes.
inline void publish_indexer_pages(const Slab& source, const Ids& source_blocks, const Ids& logical_blocks,
                                  const Slab& slab, const Ids* row_counts, int64_t part,
                                  int64_t parts) noexcept {
  for (int64_t i = 0; i < logical_blocks.rows; ++i) {
    const int64_t from = source_blocks(i), to = logical_blocks(i);
    if (!source.contains_page(from) || !slab.contains_page(to) || !owns_row(to, part, parts)) continue;
    const int64_t rows =
        row_counts == nullptr ? slab.block_rows : std::clamp<int64_t>((*row_counts)(i), 0, slab.block_rows);
    copy_rows(slab.page(to), slab.row_stride, source.page(from), source.row_stride, rows, slab.row_bytes);
  }
}

}  // namespace hisparse
