// Shared memory of a block: what the resolver needs for a size, for host and device.
#pragma once

#include <cstdint>

#include "resolver/simt/slots.h"

namespace hisparse::simt {

constexpr uint32_t kMaxThreads = 1024;
constexpr uint32_t kMaxWarps = kMaxThreads / 32;
constexpr int64_t kTablePlaces = 2;  // hash places a key: a load of at most one half
constexpr int64_t kScalars = 8;

// Offsets in int32 words. `capacity` is the most distinct host rows a run may bring.
struct SharedLayout {
  int64_t places;   // of the hash table
  int64_t keys;     // [places]
  int64_t values;   // [places]
  int64_t order;    // [hot_size] int16: the LRU row, others from the front, hits from the back
  int64_t seen;     // [hot_size] bits
  int64_t sums;     // [2][kMaxWarps]
  int64_t scalars;  // [kScalars]
  int64_t words;
};

HISPARSE_ANYWHERE constexpr SharedLayout shared_layout(int64_t capacity, int64_t hot_size) {
  SharedLayout l{};
  l.places = kTablePlaces * capacity;
  l.keys = 0;
  l.values = l.keys + l.places;
  l.order = l.values + l.places;
  l.seen = l.order + (hot_size + 1) / 2;
  l.sums = l.seen + (hot_size + 31) / 32;
  l.scalars = l.sums + 2 * kMaxWarps;
  l.words = l.scalars + kScalars;
  return l;
}

// Distinct host rows that a run of a call can bring, as far as sizes tell.
HISPARSE_ANYWHERE constexpr int64_t run_capacity(int64_t rows, int64_t top_k, int64_t union_limit) {
  const int64_t entries = rows * top_k;
  const int64_t most = entries < union_limit ? entries : union_limit;
  return most > 1 ? most : 1;
}

HISPARSE_ANYWHERE constexpr int64_t shared_bytes(int64_t rows, int64_t top_k, int64_t union_limit,
                                                 int64_t hot_size) {
  return 4 * shared_layout(run_capacity(rows, top_k, union_limit), hot_size).words;
}

}  // namespace hisparse::simt
