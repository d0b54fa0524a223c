// The (source, destination) slabs, one pair a layer, of the ops that move many layers in one call.
#pragma once

#include <string>
#include <vector>

#include "common/check.h"

namespace hisparse {

struct SlabPair {
  Slab source;
  Slab destination;
};

enum class Paged { kAny, kOnly };

inline std::vector<SlabPair> slab_pairs(const char* op, const std::vector<Tensor>& sources,
                                        const std::vector<Tensor>& destinations, Paged paged) {
  check_length(op, "destinations", destinations, "sources", sources);
  std::vector<SlabPair> pairs;
  pairs.reserve(sources.size());
  for (size_t l = 0; l < sources.size(); ++l) {
    const std::string from = item("sources", l), to = item("destinations", l);
    if (paged == Paged::kOnly) check_dim(op, from, sources[l], 3);
    const Slab source = slab(op, from, sources[l], Access::kRead);
    if (paged == Paged::kOnly) check_dim(op, to, destinations[l], 3);
    const Slab destination = slab(op, to, destinations[l], Access::kWrite);
    check_row_bytes(op, to, destination, from, source);
    if (paged == Paged::kOnly) check_size(op, to, destinations[l], 1, "block_size", source.block_rows);
    pairs.push_back({source, destination});
  }
  return pairs;
}

// No destination shares a byte with a source, with another layer's destination or with the index tensor.
inline void check_disjoint(const char* op, const std::vector<SlabPair>& pairs, const char* index_argument,
                           const Ids& index) {
  const Slab index_bytes = bytes_of(index);
  for (size_t l = 0; l < pairs.size(); ++l) {
    const Slab& mine = pairs[l].destination;
    auto refuse = [&](const std::string& other) {
      fail(op, item("destinations", l), "not overlap " + other, "shared memory");
    };
    for (size_t k = 0; k < pairs.size(); ++k) {
      if (!disjoint(mine, pairs[k].source)) refuse(item("sources", k));
      if (k < l && !disjoint(mine, pairs[k].destination)) refuse(item("destinations", k));
    }
    if (!disjoint(mine, index_bytes)) refuse(index_argument);
  }
}

}  // namespace hisparse
