// Checks of the arguments that both gather ops share.
#pragma once

#include "common/check.h"
#include "gather/refill.h"

namespace hisparse {

inline void check_grid(const char* op, const char* argument, const Tensor& t, const Ids& host_rows) {
  check_size(op, argument, t, 0, "rows", host_rows.rows);
  check_size(op, argument, t, 1, "top_k", host_rows.cols);
}

inline Refill check_refill(const char* op, const Tensor& host_cache, const Tensor& hot_cache,
                           const Tensor& host_rows, const Tensor& hot_rows) {
  Refill refill;
  refill.host = slab(op, "host_cache", host_cache, Access::kRead);
  refill.hot = slab(op, "hot_cache", hot_cache, Access::kWrite);
  check_row_bytes(op, "host_cache", refill.host, "hot_cache", refill.hot);
  refill.host_rows = ids(op, "host_rows", host_rows, 2);
  refill.hot_rows = ids(op, "hot_rows", hot_rows, 2);
  check_grid(op, "hot_rows", hot_rows, refill.host_rows);
  return refill;
}

inline void check_refill_overlap(const char* op, const Refill& refill) {
  check_disjoint(op, "host_cache", refill.host, "hot_cache", refill.hot);
  check_disjoint(op, "host_rows", bytes_of(refill.host_rows), "hot_cache", refill.hot);
  check_disjoint(op, "hot_rows", bytes_of(refill.hot_rows), "hot_cache", refill.hot);
}

}  // namespace hisparse
