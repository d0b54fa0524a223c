#include <torch/csrc/stable/library.h>

#include "common/check.h"
#include "common/parallel.h"
#include "resolver/reset_requests.h"

namespace hisparse {
namespace {

constexpr const char* kOp = "reset_requests";
constexpr int64_t kMaxHotSize = 32768;  // LRU entries are int16

void reset_requests_cpu(const Tensor& hot_owner, const Tensor& lru_slots, const Tensor& state_rows) {
  const auto owner = table<int32_t>(kOp, "hot_owner", hot_owner, kInt32, Access::kWrite);
  const auto lru = table<int16_t>(kOp, "lru_slots", lru_slots, kInt16, Access::kWrite);
  check_size(kOp, "lru_slots", lru_slots, 0, "states", owner.rows);
  check_size(kOp, "lru_slots", lru_slots, 1, "hot_size", owner.cols);
  if (owner.cols > kMaxHotSize)
    fail(kOp, "hot_owner", cat("have at most ", kMaxHotSize, " slots"), std::to_string(owner.cols));
  const Ids states = ids(kOp, "state_rows", state_rows, 1);
  check_disjoint(kOp, "lru_slots", bytes_of(lru), "hot_owner", bytes_of(owner));
  check_disjoint(kOp, "state_rows", bytes_of(states), "hot_owner", bytes_of(owner));
  check_disjoint(kOp, "state_rows", bytes_of(states), "lru_slots", bytes_of(lru));

  const int64_t bytes = owner.cols * static_cast<int64_t>(sizeof(int32_t) + sizeof(int16_t));
  // A row that is listed twice is written by one thread only, so that no two of them race.
  parallel_parts(states.rows * bytes, [&](int64_t part, int64_t parts) {
    for (int64_t i = 0; i < states.rows; ++i) {
      const int64_t state = states(i);
      if (state >= 0 && state < owner.rows && owns_row(state, part, parts))
        reset_request(owner.row(state), lru.row(state), owner.cols);
    }
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(hisparse, CPU, m) { m.impl("reset_requests", TORCH_BOX(&reset_requests_cpu)); }

}  // namespace hisparse
