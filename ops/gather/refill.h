// What both gather ops share: the caches, the plan, and how its entries are copied.
#pragma once

#include <cstdint>

#include "common/ownership.h"
#include "common/row_list.h"
#include "common/slab.h"
#include "common/view.h"

namespace hisparse {

struct Refill {
  Slab host;
  Slab hot;
  Ids host_rows;  // [rows, top_k]
  Ids hot_rows;   // [rows, top_k]
};

// Copies the entries whose hot row is one of a part's, in the order they are given.
class RefillPart {
 public:
  RefillPart(const Refill& refill, int64_t part, int64_t parts) noexcept
      : host_(refill.host), hot_(refill.hot), row_bytes_(refill.hot.row_bytes), part_(part), parts_(parts) {}

  // A row past the host cache has no bytes: its hot row is zeroed, so that nothing stale is read there.
  void add(int64_t host_row, int64_t hot_row) noexcept {
    const bool counts = host_row >= 0 && hot_.contains(hot_row) && owns_row(hot_row, part_, parts_);
    list_.add(host_.contains(host_row) ? host_(host_row) : 0, hot_(hot_row), counts);
    if (list_.is_full()) finish();
  }
  void finish() noexcept { list_.copy(row_bytes_); }

 private:
  RowAddresses host_;
  RowAddresses hot_;
  int64_t row_bytes_;
  int64_t part_;
  int64_t parts_;
  RowList list_;
};

}  // namespace hisparse
