#include <torch/csrc/stable/library.h>

#include "common/check.h"
#include "common/parallel.h"
#include "transfer/c8_check.h"
#include "transfer/scatter_c8.h"

namespace hisparse {
namespace {

constexpr const char* kOp = "scatter_c8";

void scatter_c8_cpu(const Tensor& nope, const Tensor& rope, const Tensor& scales, const Tensor& slots,
                    const Tensor& cache, StringHandle layout) {
  const std::string order = take_string(layout);
  const Ids to = ids(kOp, "slots", slots, 1);
  const int64_t tokens = to.rows;
  const Slab codes =
      c8_part(kOp, "nope", nope, {ScalarType::Float8_e4m3fn, ScalarType::Byte, ScalarType::Char}, kC8Latent,
              tokens, Access::kRead);
  const Slab tails = c8_rope(kOp, rope, tokens, Access::kRead);
  const Slab factors = c8_part(kOp, "scales", scales, {ScalarType::Float}, kC8Tiles, tokens, Access::kRead);
  const Slab rows = c8_cache(kOp, cache, Access::kWrite);
  const C8Layout places = c8_layout(kOp, order);
  check_disjoint(kOp, "cache", rows, "nope", codes);
  check_disjoint(kOp, "cache", rows, "rope", tails);
  check_disjoint(kOp, "cache", rows, "scales", factors);
  check_disjoint(kOp, "cache", rows, "slots", bytes_of(to));
  parallel_parts(tokens * kC8RowBytes, [&](int64_t part, int64_t parts) {
    scatter_c8(codes, tails, factors, to, rows, places, part, parts);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(hisparse, CPU, m) { m.impl("scatter_c8", TORCH_BOX(&scatter_c8_cpu)); }

}  // namespace hisparse
