// resolve: logical top-k -> attention indices and a refill plan, updating owner and LRU.
//
// A run is `rows` consecutive batch rows of one request. Per run, in this order:
//   translate   position -> source block -> host row; a resident page answers at once
//   unite       number the distinct host rows that the hot buffer must answer, in order of first reference
//   match       a slot whose owner is in the union is a hit; LRU splits into hits and others, order kept
//   place       physical row and attention index of every hit
//   assign      misses, in their order, take others from the oldest on
//   rewrite     LRU = remaining others | assigned | hits
//   answer      entries, counts, plan, statistics
// O(rows * top_k) for the entries, one pass over the owners and one over the LRU row a run.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "common/isa.h"
#include "common/view.h"
#include "resolver/lru_partition.h"
#include "resolver/resolve_steps.h"

namespace hisparse {

struct ResolveArgs {
  int64_t top_k = 0;
  int64_t hot_size = 0;
  int64_t host_rows = 0;
  int64_t num_blocks = 0;
  int64_t union_limit = 0;
  int64_t attention_block_stride = 0;
  PageSize page;         // device page
  PageSize source_page;  // host page
  PageSize resident_page;
  bool prefix = false;
  Isa isa = Isa::kScalar;

  Ids topk_indices;                 // [rows, top_k]
  Table<const int32_t> source;      // [num_requests, blocks], or none: entries are host rows
  Table<const int32_t> hot_blocks;  // [num_requests, blocks]
  Table<const int32_t> resident;    // [num_states, blocks], or none
  Ids stable_lengths;               // [num_requests], or none
  Table<int32_t> hot_owner;         // [num_states, hot_size]
  Table<int16_t> lru_slots;         // [num_states, hot_size]

  Table<int32_t> attention_indices;  // outputs, [rows, top_k]; the last three are optional
  Table<int32_t> refill_host_rows;
  Table<int32_t> refill_hot_rows;
  Table<int32_t> physical_rows;
  Table<int32_t> resolved_host_rows;
  Table<int32_t> miss_mask;
  Vector<int32_t> valid_counts;  // [rows]
  Vector<int32_t> refill_counts;
  Vector<int32_t> resident_counts;  // optional
  Vector<int64_t> stats;            // [2], optional, added to atomically
};

struct ResolveRun {
  int64_t first = 0;
  int64_t rows = 0;
  int64_t request = -1;
  int64_t state = -1;  // -1: padding
};

// Buffers of one thread, grown to the largest run seen and kept.
class RunResolver {
 public:
  // True when the run needs more than args.union_limit distinct host rows. Writes no argument.
  bool exceeds_limit(const ResolveArgs& args, const ResolveRun& run);

  void resolve(const ResolveArgs& args, const ResolveRun& run);

 private:
  bool translate(const ResolveArgs& args, const ResolveRun& run);
  void drop_unstable(const ResolveArgs& args, const ResolveRun& run);
  void split_lru(const ResolveArgs& args, const int32_t* owner, const int16_t* lru) noexcept;
  bool hits_are_exact(const ResolveArgs& args) noexcept;
  void split_lru_exactly(const ResolveArgs& args, const int32_t* owner, const int16_t* lru) noexcept;
  void assign(const ResolveArgs& args, const ResolveRun& run, int32_t* owner, int16_t* lru) noexcept;
  void write_plan(const ResolveArgs& args, const ResolveRun& run, int32_t* owner) noexcept;
  void answer_row(const ResolveArgs& args, const ResolveRun& run, int64_t row) noexcept;
  int64_t count_resident(const int32_t* answers, int64_t count, int64_t valid) const noexcept;
  bool is_answered(int32_t answer) const noexcept;
  void list_host_rows(const ResolveArgs& args, int64_t row, int32_t* to, int64_t valid) noexcept;
  void mark_loads(const ResolveArgs& args, int64_t row, int32_t* to) noexcept;
  void answer_padding(const ResolveArgs& args, const ResolveRun& run) noexcept;

  static constexpr size_t kFewPages = 4;

  HostRowIndex union_;
  std::vector<int32_t> host_;              // [rows * top_k]: host row of every entry
  std::vector<int32_t> resident_;          // [top_k]: physical row of an entry of the row at hand
  std::vector<int32_t> answers_;           // [rows * top_k]
  std::vector<int32_t> slots_, physical_;  // [union]: the slot that holds the row and where it stands, or -1
  std::vector<int32_t> misses_;            // union numbers, in order of first reference
  std::vector<int32_t> first_use_;         // [union]: 1 = the row is loaded and was not referenced yet
  std::vector<uint32_t> bits_;             // [hot_size]: hits, then victims taken
  std::vector<int16_t> hits_, others_;     // the LRU row, split
  std::vector<std::pair<int64_t, int64_t>> unstable_;  // host rows [first, last) past the stable length
  int64_t num_hits_ = 0, num_others_ = 0, num_misses_ = 0, num_matched_ = 0;
  int64_t resident_entries_ = 0;
  int64_t hit_references_ = 0, loads_ = 0;
};

}  // namespace hisparse
