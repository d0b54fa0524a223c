#include <torch/csrc/stable/library.h>

#include "common/check.h"
#include "common/parallel.h"
#include "common/subnormals.h"
#include "transfer/c8_check.h"
#include "transfer/dequantize_c8.h"

namespace hisparse {
namespace {

constexpr const char* kOp = "dequantize_c8";

DequantizeRow by_type(ScalarType type) noexcept {
  const Isa isa = current_isa();
  if (type == ScalarType::BFloat16) return dequantize_row<BFloat16>(isa);
  if (type == ScalarType::Half) return dequantize_row<Float16>(isa);
  return dequantize_row<Float32>(isa);
}

void dequantize_c8_cpu(const Tensor& cache, const Tensor& row_ids, const Tensor& latent, const Tensor& rope,
                       StringHandle layout) {
  const std::string order = take_string(layout);
  const Slab rows = c8_cache(kOp, cache, Access::kRead);
  const Ids from = ids(kOp, "row_ids", row_ids, 1);
  const int64_t tokens = from.rows;
  const Slab values =
      c8_part(kOp, "latent", latent, {ScalarType::BFloat16, ScalarType::Half, ScalarType::Float}, kC8Latent,
              tokens, Access::kWrite);
  const Slab tails = c8_rope(kOp, rope, tokens, Access::kWrite);
  const C8Layout places = c8_layout(kOp, order);
  check_disjoint(kOp, "latent", values, "cache", rows);
  check_disjoint(kOp, "latent", values, "row_ids", bytes_of(from));
  check_disjoint(kOp, "rope", tails, "cache", rows);
  check_disjoint(kOp, "rope", tails, "row_ids", bytes_of(from));
  check_disjoint(kOp, "rope", tails, "latent", values);
  const DequantizeRow dequantize = by_type(dtype_of(latent));
  parallel_rows(tokens, kC8RowBytes + values.row_bytes, [&](int64_t begin, int64_t end) {
    const KeepSubnormals keep;
    dequantize_c8(rows, places, from, values, tails, dequantize, begin, end);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(hisparse, CPU, m) { m.impl("dequantize_c8", TORCH_BOX(&dequantize_c8_cpu)); }

}  // namespace hisparse
