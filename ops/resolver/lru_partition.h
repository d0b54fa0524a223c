// Order-preserving split of an LRU row into hit slots and all others.
#pragma once

#include <cstdint>

#include "common/isa.h"

namespace hisparse {

// A set of slots, one bit each.
inline bool has_bit(const uint32_t* bits, int64_t i) noexcept { return bits[i >> 5] >> (i & 31) & 1; }
inline void set_bit(uint32_t* bits, int64_t i) noexcept { bits[i >> 5] |= 1u << (i & 31); }
inline void clear_bit(uint32_t* bits, int64_t i) noexcept { bits[i >> 5] &= ~(1u << (i & 31)); }

// Room that hits and others need past their last entry: wide stores write whole vectors.
inline constexpr int64_t kPartitionPadding = 32;

struct Partition {
  int64_t hits = 0;
  int64_t others = 0;
  bool in_range = true;  // false: an entry outside [0, size) came up and the lists are not to be used
};

// hits and others receive the entries of lru[0, size) in order; bits says which slots are hits.
Partition partition_lru(Isa isa, const int16_t* lru, int64_t size, const uint32_t* bits, int16_t* hits,
                        int16_t* others) noexcept;

}  // namespace hisparse
