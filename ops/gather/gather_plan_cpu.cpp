#include <torch/csrc/stable/library.h>

#include <optional>

#include "common/parallel.h"
#include "gather/check_refill.h"
#include "gather/gather_plan.h"

namespace hisparse {
namespace {

constexpr const char* kOp = "gather_plan";

// Pages do not overlap, and the largest attention index, that of the slab's last row, fits int32.
void check_block_stride(const Slab& hot, int64_t block_stride) {
  constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
  const int64_t room = kInt32Max - (hot.block_rows - 1);
  const int64_t high = hot.blocks > 1 ? room / (hot.blocks - 1) : kInt32Max;
  check_range(kOp, "attention_block_stride", block_stride, hot.block_rows, high);
}

void check_overlap(const GatherPlan& plan, const Table<int32_t>& attention) {
  const Refill& refill = plan.refill;
  check_refill_overlap(kOp, refill);
  check_disjoint(kOp, "miss_mask", bytes_of(plan.miss_mask), "hot_cache", refill.hot);
  check_disjoint(kOp, "request_state_indices", bytes_of(plan.states), "hot_cache", refill.hot);
  const Slab written = bytes_of(attention);
  check_disjoint(kOp, "hot_cache", refill.hot, "attention_indices", written);
  check_disjoint(kOp, "host_cache", refill.host, "attention_indices", written);
  check_disjoint(kOp, "host_rows", bytes_of(refill.host_rows), "attention_indices", written);
  check_disjoint(kOp, "hot_rows", bytes_of(refill.hot_rows), "attention_indices", written);
  check_disjoint(kOp, "miss_mask", bytes_of(plan.miss_mask), "attention_indices", written);
  check_disjoint(kOp, "request_state_indices", bytes_of(plan.states), "attention_indices", written);
}

void gather_plan_cpu(const Tensor& host_cache, const Tensor& hot_cache, const Tensor& host_rows,
                     const Tensor& hot_rows, const Tensor& miss_mask,
                     const std::optional<Tensor>& attention_indices, int64_t attention_block_stride,
                     const std::optional<Tensor>& request_state_indices) {
  GatherPlan plan;
  plan.refill = check_refill(kOp, host_cache, hot_cache, host_rows, hot_rows);
  const Slab& hot = plan.refill.hot;
  plan.miss_mask = ids(kOp, "miss_mask", miss_mask, 2);
  check_grid(kOp, "miss_mask", miss_mask, plan.refill.host_rows);
  Table<int32_t> attention;
  if (attention_indices.has_value()) {
    attention = table<int32_t>(kOp, "attention_indices", *attention_indices, kInt32, Access::kWrite);
    check_grid(kOp, "attention_indices", *attention_indices, plan.refill.host_rows);
    check_block_stride(hot, attention_block_stride);
  }
  if (request_state_indices.has_value()) {
    plan.states = ids(kOp, "request_state_indices", *request_state_indices, 1);
    check_size(kOp, "request_state_indices", *request_state_indices, 0, "rows", plan.rows());
  }
  check_overlap(plan, attention);

  if (attention_indices.has_value()) {
    const AttentionRows rows(hot, attention_block_stride);
    constexpr int64_t kEntryBytes = sizeof(int64_t) + sizeof(int32_t);
    parallel_rows(attention.rows * attention.cols, kEntryBytes,
                  [&](int64_t begin, int64_t end) { write_attention(plan, rows, attention, begin, end); });
  }
  parallel_parts(count_misses(plan) * hot.row_bytes,
                 [&](int64_t part, int64_t parts) { gather_plan(plan, part, parts); });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(hisparse, CPU, m) { m.impl("gather_plan", TORCH_BOX(&gather_plan_cpu)); }

}  // namespace hisparse
