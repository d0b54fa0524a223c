// invalidate_written: owners[g][s, h] = -1 where it equals slots[i], s =
// request_state_indices[request_ids[i]].
#pragma once

#include "invalidate/owner_drop.h"

namespace hisparse {

// State row of token i, or -1 when the token names none or its slot can be nowhere.
inline int64_t written_state(const Ids& states, const Ids& requests, const Ids& slots, int64_t i,
                             int64_t max_states) noexcept {
  const int64_t request = requests(i);
  if (!can_be_owned(slots(i)) || request < 0 || request >= states.rows) return -1;
  const int64_t state = states(request);
  return state >= 0 && state < max_states ? state : -1;
}

// Sorts the slots by state row (a counting sort: one pass counts, one places) and makes a set of each.
inline void plan_written(OwnerDrop& drop, const Ids& states, const Ids& requests, const Ids& slots) {
  const int64_t max_states = drop.max_states();
  drop.sets.clear();
  drop.states.clear();
  drop.one_set = false;
  drop.ends.assign(max_states + 1, 0);
  drop.rows.resize(slots.rows);
  const auto state_of = [&](int64_t i) { return written_state(states, requests, slots, i, max_states); };
  for (int64_t i = 0; i < slots.rows; ++i) ++drop.ends[state_of(i) + 1];
  drop.ends[0] = 0;
  for (int64_t s = 0; s < max_states; ++s) drop.ends[s + 1] += drop.ends[s];
  // Placing moves the start of each state, ends[s], to its end.
  for (int64_t i = 0; i < slots.rows; ++i)
    if (const int64_t s = state_of(i); s >= 0) drop.rows[drop.ends[s]++] = static_cast<int32_t>(slots(i));
  int64_t begin = 0;
  for (int64_t s = 0; s < max_states; ++s) {
    const int64_t end = drop.ends[s];
    if (end > begin) {
      drop.states.push_back(s);
      drop.sets.add(drop.rows.data() + begin, end - begin);
    }
    begin = end;
  }
}

}  // namespace hisparse
