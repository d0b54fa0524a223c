#include <torch/csrc/stable/library.h>

#include "common/check.h"
#include "common/parallel.h"
#include "transfer/c8_check.h"
#include "transfer/quantize_scatter_c8.h"

namespace hisparse {
namespace {

constexpr const char* kOp = "quantize_scatter_c8";

template <class Element>
QuantizeRow by_rule(const std::string& scale_rule) noexcept {
  const Isa isa = current_isa();
  return scale_rule == "amax" ? quantize_row<Element, ScaleRule::kAmax>(isa)
                              : quantize_row<Element, ScaleRule::kPow2>(isa);
}

QuantizeRow by_type(ScalarType type, const std::string& scale_rule) noexcept {
  if (type == ScalarType::BFloat16) return by_rule<BFloat16>(scale_rule);
  if (type == ScalarType::Half) return by_rule<Float16>(scale_rule);
  return by_rule<Float32>(scale_rule);
}

void quantize_scatter_c8_cpu(const Tensor& latent, const Tensor& rope, const Tensor& slots,
                             const Tensor& cache, StringHandle layout, StringHandle scale_rule) {
  const std::string order = take_string(layout);
  const std::string rule = take_string(scale_rule);
  const Ids to = ids(kOp, "slots", slots, 1);
  const int64_t tokens = to.rows;
  const Slab values =
      c8_part(kOp, "latent", latent, {ScalarType::BFloat16, ScalarType::Half, ScalarType::Float}, kC8Latent,
              tokens, Access::kRead);
  const Slab tails = c8_rope(kOp, rope, tokens, Access::kRead);
  const Slab rows = c8_cache(kOp, cache, Access::kWrite);
  const C8Layout places = c8_layout(kOp, order);
  check_choice(kOp, "scale_rule", rule, {"amax", "pow2"});
  check_disjoint(kOp, "cache", rows, "latent", values);
  check_disjoint(kOp, "cache", rows, "rope", tails);
  check_disjoint(kOp, "cache", rows, "slots", bytes_of(to));
  const QuantizeRow quantize = by_type(dtype_of(latent), rule);
  parallel_parts(tokens * values.row_bytes, [&](int64_t part, int64_t parts) {
    quantize_scatter_c8(values, tails, to, rows, places, quantize, part, parts);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(hisparse, CPU, m) {
  m.impl("quantize_scatter_c8", TORCH_BOX(&quantize_scatter_c8_cpu));
}

}  // namespace hisparse
