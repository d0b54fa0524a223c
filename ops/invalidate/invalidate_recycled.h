// invalidate_recycled: owners[g][s, h] = -1 where it is one of sorted_slots, for every s in state_rows.
#pragma once

#include "invalidate/owner_drop.h"

namespace hisparse {

inline void plan_recycled(OwnerDrop& drop, const Ids& state_rows, const Ids& slots) {
  const int64_t max_states = drop.max_states();
  drop.sets.clear();
  drop.states.clear();
  drop.one_set = true;
  drop.rows.clear();
  for (int64_t i = 0; i < slots.rows; ++i)
    if (can_be_owned(slots(i))) drop.rows.push_back(static_cast<int32_t>(slots(i)));
  if (drop.rows.empty()) return;
  drop.sets.add(drop.rows.data(), static_cast<int64_t>(drop.rows.size()));
  // A state row that is listed twice must not be given to two threads.
  drop.ends.assign(max_states, 0);
  for (int64_t i = 0; i < state_rows.rows; ++i) {
    const int64_t state = state_rows(i);
    if (state >= 0 && state < max_states && drop.ends[state]++ == 0) drop.states.push_back(state);
  }
}

}  // namespace hisparse
