#include <torch/csrc/stable/library.h>

#include "common/check.h"
#include "common/parallel.h"
#include "transfer/copy_resident_rows.h"

namespace hisparse {
namespace {

constexpr const char* kOp = "copy_resident_rows";

void copy_resident_rows_cpu(const Tensor& source, const Tensor& row_ids, const Tensor& staging,
                            StringHandle invalid) {
  const std::string rule = take_string(invalid);
  const Slab from = slab(kOp, "source", source, Access::kRead);
  const Ids rows = ids(kOp, "row_ids", row_ids, 1);
  const Slab to = slab(kOp, "staging", staging, Access::kWrite);
  check_row_bytes(kOp, "staging", to, "source", from);
  if (to.rows() < rows.rows)
    fail(kOp, "staging", cat("have at least ", rows.rows, " rows like row_ids"), std::to_string(to.rows()));
  check_choice(kOp, "invalid", rule, {"row0", "keep"});
  const bool row0 = rule == "row0";
  if (row0 && rows.rows > 0 && from.rows() == 0)
    fail(kOp, "source", "have a row 0 with invalid = \"row0\"", "0 rows");
  check_disjoint(kOp, "staging", to, "source", from);
  check_disjoint(kOp, "staging", to, "row_ids", bytes_of(rows));
  if (from.row_bytes == 0) return;
  const Slab flat_from = flattened(from), flat_to = flattened(to);
  parallel_rows(rows.rows, from.row_bytes, [&](int64_t begin, int64_t end) {
    copy_resident_rows(flat_from, rows, flat_to, row0, begin, end);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(hisparse, CPU, m) {
  m.impl("copy_resident_rows", TORCH_BOX(&copy_resident_rows_cpu));
}

}  // namespace hisparse
