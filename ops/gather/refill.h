// What both gather ops share: the caches, the plan, and how one entry is copied.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/slab.h"
#include "common/view.h"

namespace hisparse {

struct Refill {
  Slab host;
  Slab hot;
  Ids host_rows;  // [rows, top_k]
  Ids hot_rows;   // [rows, top_k]

  // A row past the host cache has no bytes: its hot row is zeroed, so that nothing stale is read there.
  void copy(int64_t host_row, int64_t hot_row) const noexcept {
    if (host_row < 0 || !hot.contains(hot_row)) return;
    char* to = hot.row(hot_row);
    if (host.contains(host_row)) copy_row(to, host.row(host_row), hot.row_bytes);
    else if (hot.row_bytes > 0) std::memset(to, 0, static_cast<size_t>(hot.row_bytes));
  }
};

}  // namespace hisparse
