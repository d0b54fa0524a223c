// Finds the owners of a state row that hold stale host rows, and makes them -1.
#pragma once

#include <cstdint>
#include <vector>

#include "common/isa.h"

namespace hisparse {

// Host rows [first, first + span]. Owners are compared as unsigned, so that -1 is in no range.
struct RowRange {
  uint32_t first = 0;
  uint32_t span = 0;
};

// A set of host rows, made to be looked for among many owners.
//
// Rows that are written or recycled together stand side by side, so most sets are a few ranges, which are
// compared as they are. Any other set is a filter that says which owners to look up in a hash table. The
// filter has a byte a place: one load and no bit arithmetic an owner, which on CPUs with a slow gather
// instruction is twice as fast as a vector gather of bits.
struct StaleRows {
  static constexpr int64_t kMaxRanges = 6;  // comparing more takes longer than asking the filter

  RowRange ranges[kMaxRanges];
  int64_t num_ranges = 0;  // above kMaxRanges the ranges are incomplete: filter and table tell

  int64_t filter = 0;     // where the filter starts
  uint32_t key_mask = 0;  // the filter knows a row, or the page of it, by row & key_mask
  int filter_shift = 0;   // place of a key: the top bits of its hash
  int64_t table = 0;      // where the hash table starts: open addressing, -1 empty
  int table_shift = 0;
};

// Sets of stale rows over common buffers, which grow to the largest call seen and are kept.
class StaleSets {
 public:
  void clear() noexcept;

  // Adds a set: rows[0, count), each >= 0, in any order, repeats allowed.
  void add(const int32_t* rows, int64_t count);

  // owner[i] = -1 wherever owner[i] is in the given set.
  void drop(Isa isa, int64_t set, int32_t* owner, int64_t size) const noexcept;

 private:
  void add_filter(StaleRows& set, const int32_t* rows, int64_t count);
  void add_table(StaleRows& set, const int32_t* rows, int64_t count);

  std::vector<StaleRows> sets_;
  std::vector<uint8_t> filters_;
  std::vector<int32_t> tables_;
};

}  // namespace hisparse
