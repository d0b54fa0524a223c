#include <torch/csrc/stable/library.h>

#include "common/check.h"
#include "common/parallel.h"
#include "transfer/scatter_rows.h"

namespace hisparse {
namespace {

constexpr const char* kOp = "scatter_rows";

Slab source(const std::string& argument, const Tensor& t, int64_t tokens) {
  check_cpu(kOp, argument, t);
  check_dim(kOp, argument, t, 2);
  check_size(kOp, argument, t, 0, "tokens", tokens);
  return slab(kOp, argument, t, Access::kRead);
}

void check_overlaps(const std::vector<Slab>& rows, const std::vector<Slab>& caches, const Ids& slots) {
  for (size_t j = 0; j < caches.size(); ++j) {
    for (size_t k = 0; k < rows.size(); ++k)
      check_disjoint(kOp, item("caches", j), caches[j], item("rows", k), rows[k]);
    for (size_t k = 0; k < j; ++k)
      check_disjoint(kOp, item("caches", j), caches[j], item("caches", k), caches[k]);
    check_disjoint(kOp, item("caches", j), caches[j], "slots", bytes_of(slots));
  }
}

void scatter_rows_cpu(const std::vector<Tensor> rows, const Tensor& slots, const std::vector<Tensor> caches) {
  const Ids to = ids(kOp, "slots", slots, 1);
  if (rows.empty()) fail(kOp, "rows", "hold at least 1 tensor", "0");
  check_length(kOp, "caches", caches, "rows", rows);
  std::vector<Slab> from, into;
  int64_t bytes = 0;
  for (size_t j = 0; j < rows.size(); ++j) {
    from.push_back(source(item("rows", j), rows[j], to.rows));
    into.push_back(slab(kOp, item("caches", j), caches[j], Access::kWrite));
    check_row_bytes(kOp, item("caches", j), into[j], item("rows", j), from[j]);
    if (into[j].rows() != into[0].rows())
      fail(kOp, item("caches", j), cat("have ", into[0].rows(), " rows like caches[0]"),
           std::to_string(into[j].rows()));
    bytes += from[j].row_bytes;
  }
  check_overlaps(from, into, to);
  parallel_parts(to.rows * bytes, [&](int64_t part, int64_t parts) {
    scatter_rows(from.data(), into.data(), static_cast<int64_t>(into.size()), to, part, parts);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(hisparse, CPU, m) { m.impl("scatter_rows", TORCH_BOX(&scatter_rows_cpu)); }

}  // namespace hisparse
