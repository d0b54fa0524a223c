// residency_stats: hits += sum(valid - resident - refill), misses += sum(refill). Sums alone, so it has no
// core.
#include <torch/csrc/stable/library.h>

#include <optional>

#include "common/check.h"

namespace hisparse {
namespace {

constexpr const char* kOp = "residency_stats";

// Any value may stand among the counts, and a sum of them wraps at 64 bits; signed, it would be undefined.
uint64_t sum(const Ids& counts) noexcept {
  uint64_t total = 0;
  for (int64_t i = 0; i < counts.rows; ++i) total += static_cast<uint64_t>(counts(i));
  return total;
}

void add(int64_t& total, uint64_t more) noexcept {
  total = static_cast<int64_t>(static_cast<uint64_t>(total) + more);
}

void residency_stats_cpu(const Tensor& valid_counts, const Tensor& refill_counts, const Tensor& stats,
                         const std::optional<Tensor>& resident_counts) {
  const Ids valid = ids(kOp, "valid_counts", valid_counts, 1);
  const auto counts = [&](const char* argument, const Tensor& t) {
    const Ids view = ids(kOp, argument, t, 1);
    check_size(kOp, argument, t, 0, "rows", valid.rows);
    return view;
  };
  const Ids refill = counts("refill_counts", refill_counts);
  const Ids resident = resident_counts ? counts("resident_counts", *resident_counts) : Ids{};
  const auto out = vector<int64_t>(kOp, "stats", stats, kInt64, "length", 2);
  const uint64_t misses = sum(refill);
  add(out[0], sum(valid) - sum(resident) - misses);
  add(out[1], misses);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(hisparse, CPU, m) { m.impl("residency_stats", TORCH_BOX(&residency_stats_cpu)); }

}  // namespace hisparse
