// fill_full_visible: row v is 0 .. v - 1, then -1.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <numeric>

#include "common/check.h"
#include "common/parallel.h"

namespace hisparse {
namespace {

constexpr const char* kOp = "fill_full_visible";

void fill_full_visible_cpu(const Tensor& t) {
  const auto rows = table<int32_t>(kOp, "table", t, kInt32, Access::kWrite);
  check_size(kOp, "table", t, 0, "max_visible + 1", rows.cols + 1);
  parallel_rows(rows.rows, rows.cols * 4, [&](int64_t begin, int64_t end) {
    for (int64_t visible = begin; visible < end; ++visible) {
      int32_t* row = rows.row(visible);
      std::iota(row, row + visible, 0);
      std::fill(row + visible, row + rows.cols, -1);
    }
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(hisparse, CPU, m) {
  m.impl("fill_full_visible", TORCH_BOX(&fill_full_visible_cpu));
}

}  // namespace hisparse
