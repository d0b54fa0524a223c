#include <torch/csrc/stable/library.h>

#include "common/parallel.h"
#include "gather/check_refill.h"
#include "gather/gather_compact.h"

namespace hisparse {
namespace {

constexpr const char* kOp = "gather_compact";

void gather_compact_cpu(const Tensor& host_cache, const Tensor& hot_cache, const Tensor& host_rows,
                        const Tensor& hot_rows, const Tensor& counts) {
  const Refill refill = check_refill(kOp, host_cache, hot_cache, host_rows, hot_rows);
  const Ids columns = ids(kOp, "counts", counts, 1);
  check_size(kOp, "counts", counts, 0, "rows", refill.host_rows.rows);
  check_refill_overlap(kOp, refill);
  check_disjoint(kOp, "counts", bytes_of(columns), "hot_cache", refill.hot);

  const int64_t bytes = compact_entries(refill, columns) * refill.hot.row_bytes;
  parallel_parts(bytes, [&](int64_t part, int64_t parts) { gather_compact(refill, columns, part, parts); });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(hisparse, CPU, m) { m.impl("gather_compact", TORCH_BOX(&gather_compact_cpu)); }

}  // namespace hisparse
