// Which owner rows a call looks at, and the sets of host rows it drops from them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/view.h"
#include "invalidate/owner_scan.h"

namespace hisparse {

// Buffers of one calling thread; other threads only read them.
struct OwnerDrop {
  std::vector<Table<int32_t>> owners;  // a [num_states, hot_size] table an index group
  StaleSets sets;
  std::vector<int64_t> states;  // the state rows to look at, each once
  bool one_set = false;         // set 0 is for all of them; otherwise set i is for states[i]

  std::vector<int32_t> rows;  // room for a list of stale rows
  std::vector<int64_t> ends;  // room for a number a state row

  int64_t max_states() const noexcept {
    int64_t most = 0;
    for (const auto& table : owners)
      if (table.cols > 0) most = std::max(most, table.rows);  // a table without slots may have any
    return most;
  }

  int64_t max_row_bytes() const noexcept {
    int64_t most = 0;
    for (const auto& table : owners) most = std::max(most, table.cols);
    return most * static_cast<int64_t>(sizeof(int32_t));
  }

  // Pairs of a state row and a table; all tables of one state stand together, while its set is in cache.
  int64_t pairs() const noexcept { return static_cast<int64_t>(states.size() * owners.size()); }

  void run(Isa isa, int64_t begin, int64_t end) const noexcept {
    const int64_t groups = static_cast<int64_t>(owners.size());
    for (int64_t pair = begin; pair < end; ++pair) {
      const int64_t i = pair / groups;
      const Table<int32_t>& table = owners[pair - i * groups];
      if (states[i] < table.rows) sets.drop(isa, one_set ? 0 : i, table.row(states[i]), table.cols);
    }
  }
};

// A host row as owners hold it; what int32 cannot hold is owned nowhere.
inline bool can_be_owned(int64_t row) noexcept { return row >= 0 && row <= INT32_MAX; }

}  // namespace hisparse
