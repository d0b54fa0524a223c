#include <torch/csrc/stable/library.h>

#include "common/parallel.h"
#include "invalidate/check_owners.h"
#include "invalidate/invalidate_recycled.h"

namespace hisparse {
namespace {

constexpr const char* kOp = "invalidate_recycled";

void invalidate_recycled_cpu(const std::vector<Tensor>& owners, const Tensor& state_rows,
                             const Tensor& sorted_slots) {
  thread_local OwnerDrop drop;
  check_owners(kOp, owners, drop.owners);
  const Ids states = ids(kOp, "state_rows", state_rows, 1);
  const Ids recycled = ids(kOp, "sorted_slots", sorted_slots, 1);
  check_owners_apart(kOp, drop.owners);
  const size_t groups = drop.owners.size();
  check_apart(kOp, "state_rows", bytes_of(states), drop.owners, groups);
  check_apart(kOp, "sorted_slots", bytes_of(recycled), drop.owners, groups);

  plan_recycled(drop, states, recycled);
  const OwnerDrop& planned =
      drop;  // a lambda does not capture thread_local variables: workers have their own
  const Isa isa = current_isa();
  parallel_rows(planned.pairs(), planned.max_row_bytes(),
                [&planned, isa](int64_t begin, int64_t end) { planned.run(isa, begin, end); });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(hisparse, CPU, m) {
  m.impl("invalidate_recycled", TORCH_BOX(&invalidate_recycled_cpu));
}

}  // namespace hisparse
