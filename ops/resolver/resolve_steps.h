// The passes over entries and slots that decide what resolve costs, each with its vector forms.
#pragma once

#include <cstdint>

#include "common/isa.h"
#include "resolver/host_row_index.h"
#include "resolver/page_rows.h"

namespace hisparse {

// What answers an entry: a physical row (>= 0), nothing, or the union's row number n as -2 - n.
inline constexpr int32_t kNothing = -1;
inline int32_t from_union(int32_t number) noexcept { return -2 - number; }
inline int64_t union_number(int32_t answer) noexcept { return -2 - int64_t{answer}; }

// Enters the host rows of entries without a resident row into `index` and writes every entry's answer, until
// the index holds more than `limit` rows. `resident` may be null. Returns how many entries a resident row
// answers.
int64_t unite(Isa isa, HostRowIndex& index, const int32_t* host, const int32_t* resident, int64_t count,
              int64_t limit, int32_t* answers) noexcept;

// slots[n] = the slot whose owner is row n of the index (any of several), bits = the slots that have one;
// both are cleared first. Returns how many slots matched.
int64_t match_owners(Isa isa, const HostRowIndex& index, const int32_t* owner, int64_t hot_size,
                     uint32_t* bits, int32_t* slots) noexcept;

// Attention index of a physical row.
struct AttentionIndex {
  PageSize page;
  int64_t block_stride = 0;
  int32_t operator()(int32_t physical) const noexcept {
    if (physical < 0) return -1;
    const int64_t block = page.page(physical);
    return static_cast<int32_t>(block * block_stride + physical - page.start(block));
  }
};

// Writes what attention reads for every entry, and its physical row where `physical_rows` is not null. With
// `prefix` the answered entries come first, in order. union_rows[n] is the physical row of row n. Returns how
// many were answered.
int64_t answer_entries(Isa isa, const AttentionIndex& attend, const int32_t* answers, int64_t count,
                       const int32_t* union_rows, bool prefix, int32_t* attention,
                       int32_t* physical_rows) noexcept;

}  // namespace hisparse
