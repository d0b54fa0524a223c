#include <torch/csrc/stable/library.h>

#include "common/parallel.h"
#include "invalidate/check_owners.h"
#include "invalidate/invalidate_written.h"

namespace hisparse {
namespace {

constexpr const char* kOp = "invalidate_written";

void invalidate_written_cpu(const std::vector<Tensor>& owners, const Tensor& request_state_indices,
                            const Tensor& request_ids, const Tensor& slots) {
  thread_local OwnerDrop drop;
  check_owners(kOp, owners, drop.owners);
  const Ids states = ids(kOp, "request_state_indices", request_state_indices, 1);
  const Ids requests = ids(kOp, "request_ids", request_ids, 1);
  const Ids written = ids(kOp, "slots", slots, 1);
  check_size(kOp, "slots", slots, 0, "tokens", requests.rows);
  check_owners_apart(kOp, drop.owners);
  const size_t groups = drop.owners.size();
  check_apart(kOp, "request_state_indices", bytes_of(states), drop.owners, groups);
  check_apart(kOp, "request_ids", bytes_of(requests), drop.owners, groups);
  check_apart(kOp, "slots", bytes_of(written), drop.owners, groups);

  plan_written(drop, states, requests, written);
  const OwnerDrop& planned =
      drop;  // a lambda does not capture thread_local variables: workers have their own
  const Isa isa = current_isa();
  parallel_rows(planned.pairs(), planned.max_row_bytes(),
                [&planned, isa](int64_t begin, int64_t end) { planned.run(isa, begin, end); });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(hisparse, CPU, m) {
  m.impl("invalidate_written", TORCH_BOX(&invalidate_written_cpu));
}

}  // namespace hisparse
