#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <vector>

#include "common/check.h"
#include "common/parallel.h"
#include "resolver/resolve.h"

namespace hisparse {
namespace {

constexpr const char* kOp = "resolve";
constexpr int64_t kMaxHotSize = 32768;  // LRU entries are int16
constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();

using OptionalTensor = std::optional<Tensor>;
using OptionalInt = std::optional<int64_t>;

// The memory of every argument, to see that no output overlaps anything else.
class Overlaps {
 public:
  void read(const char* argument, const Slab& bytes) { items_.push_back({argument, bytes, false}); }
  void write(const char* argument, const Slab& bytes) { items_.push_back({argument, bytes, true}); }
  void check() const {
    for (size_t i = 0; i < items_.size(); ++i)
      for (size_t j = 0; j < i; ++j) {
        // The later one is named, unless only the earlier one is written.
        const Item& a = items_[i].written ? items_[i] : items_[j];
        const Item& b = items_[i].written ? items_[j] : items_[i];
        if (a.written) check_disjoint(kOp, a.argument, a.bytes, b.argument, b.bytes);
      }
  }

 private:
  struct Item {
    const char* argument;
    Slab bytes;
    bool written;
  };
  std::vector<Item> items_;
};

// Runs of one state row, in row order: they are transactions and go to one thread.
struct Chains {
  std::vector<ResolveRun> runs;
  std::vector<int32_t> next;   // run -> next run of the same state, or -1
  std::vector<int32_t> heads;  // first run of every chain
  std::vector<int32_t> last;   // state -> last run seen; -1 outside a call
};

void build_chains(const Ids& requests, const Ids& states, int64_t num_requests, int64_t num_states,
                  Chains& chains) {
  chains.runs.clear();
  chains.heads.clear();
  if (static_cast<int64_t>(chains.last.size()) < num_states) chains.last.resize(num_states, -1);
  const int64_t rows = requests.rows;
  for (int64_t first = 0, row = 0; row < rows; first = row) {
    const int64_t request = requests(first);
    do ++row;
    while (row < rows && requests(row) == request);
    int64_t state = request >= 0 && request < num_requests ? states(request) : -1;
    if (state < 0 || state >= num_states) state = -1;
    chains.runs.push_back({first, row - first, request, state});
  }
  chains.next.assign(chains.runs.size(), -1);
  for (size_t i = 0; i < chains.runs.size(); ++i) {
    const int32_t run = static_cast<int32_t>(i);
    const int64_t state = chains.runs[i].state;
    if (state >= 0 && chains.last[state] >= 0) chains.next[chains.last[state]] = run;
    else chains.heads.push_back(run);
    if (state >= 0) chains.last[state] = run;
  }
  for (const ResolveRun& run : chains.runs)
    if (run.state >= 0) chains.last[run.state] = -1;
}

RunResolver& thread_resolver() {
  thread_local RunResolver resolver;
  return resolver;
}

// Refused before anything is written: a run that needs more rows than the hot buffer may give it.
void check_unions(const ResolveArgs& args, const Chains& chains, int64_t bytes_per_run) {
  const int64_t num_runs = static_cast<int64_t>(chains.runs.size());
  std::atomic<int64_t> first_bad{num_runs};
  parallel_rows(num_runs, bytes_per_run, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (i >= first_bad.load() || !thread_resolver().exceeds_limit(args, chains.runs[i])) continue;
      int64_t seen = first_bad.load();
      while (i < seen && !first_bad.compare_exchange_weak(seen, i)) {
      }
    }
  });
  if (first_bad.load() < num_runs)
    fail(kOp, "topk_indices", cat("need at most ", args.union_limit, " distinct host rows in a run"),
         cat("more in the run at row ", chains.runs[first_bad.load()].first));
}

// The arguments of one call, checked one after the other in the order of the Python checks.
struct Call {
  ResolveArgs args;
  Ids requests;
  Ids states;
  int64_t rows = 0;
  int64_t num_requests = 0;  // rows that every table indexed by request has
  int64_t num_states = 0;
  Overlaps overlaps;

  void batch(const Tensor& topk_indices, const Tensor& request_ids, const Tensor& request_state_indices);
  void state(const Tensor& hot_block_table, const Tensor& hot_owner, const Tensor& lru_slots);
  Table<int32_t> entries(const char* argument, const OptionalTensor& t);
  Vector<int32_t> counts(const char* argument, const OptionalTensor& t);
  void add_stats(const OptionalTensor& stats);
  void choose_layout(const std::string& layout);
  void source(const OptionalTensor& source_block_table, const OptionalTensor& resident_block_table,
              const OptionalTensor& stable_lengths);
  void sizes(const Tensor& hot_block_table, int64_t host_rows, int64_t num_blocks, int64_t block_size,
             OptionalInt source_block_size, OptionalInt attention_block_stride, OptionalInt max_union_rows,
             OptionalInt resident_block_size);
};

void Call::batch(const Tensor& topk_indices, const Tensor& request_ids, const Tensor& request_state_indices) {
  args.topk_indices = ids(kOp, "topk_indices", topk_indices, 2);
  rows = topk_indices.size(0);
  args.top_k = topk_indices.size(1);
  requests = ids(kOp, "request_ids", request_ids, 1);
  check_size(kOp, "request_ids", request_ids, 0, "rows", rows);
  states = ids(kOp, "request_state_indices", request_state_indices, 1);
  num_requests = request_state_indices.size(0);
  overlaps.read("topk_indices", bytes_of(args.topk_indices));
  overlaps.read("request_ids", bytes_of(requests));
  overlaps.read("request_state_indices", bytes_of(states));
}

void Call::state(const Tensor& hot_block_table, const Tensor& hot_owner, const Tensor& lru_slots) {
  args.hot_blocks = table<const int32_t>(kOp, "hot_block_table", hot_block_table, kInt32, Access::kRead);
  num_requests = std::min(num_requests, hot_block_table.size(0));
  args.hot_owner = table<int32_t>(kOp, "hot_owner", hot_owner, kInt32, Access::kWrite);
  num_states = hot_owner.size(0);
  args.hot_size = hot_owner.size(1);
  args.lru_slots = table<int16_t>(kOp, "lru_slots", lru_slots, kInt16, Access::kWrite);
  check_size(kOp, "lru_slots", lru_slots, 0, "states", num_states);
  check_size(kOp, "lru_slots", lru_slots, 1, "hot_size", args.hot_size);
  overlaps.read("hot_block_table", bytes_of(args.hot_blocks));
  overlaps.write("hot_owner", bytes_of(args.hot_owner));
  overlaps.write("lru_slots", bytes_of(args.lru_slots));
}

Table<int32_t> Call::entries(const char* argument, const OptionalTensor& t) {
  if (!t) return {};
  const auto view = table<int32_t>(kOp, argument, *t, kInt32, Access::kWrite);
  check_size(kOp, argument, *t, 0, "rows", rows);
  check_size(kOp, argument, *t, 1, "top_k", args.top_k);
  overlaps.write(argument, bytes_of(view));
  return view;
}

Vector<int32_t> Call::counts(const char* argument, const OptionalTensor& t) {
  if (!t) return {};
  const auto view = vector<int32_t>(kOp, argument, *t, kInt32, "rows", rows);
  overlaps.write(argument, bytes_of(view));
  return view;
}

void Call::add_stats(const OptionalTensor& stats) {
  if (!stats) return;
  args.stats = vector<int64_t>(kOp, "stats", *stats, kInt64, "length", 2);
  overlaps.write("stats", bytes_of(args.stats));
}

void Call::choose_layout(const std::string& layout) {
  check_choice(kOp, "layout", layout, {"column", "prefix"});
  args.prefix = layout == "prefix";
}

void Call::source(const OptionalTensor& source_block_table, const OptionalTensor& resident_block_table,
                  const OptionalTensor& stable_lengths) {
  const auto block_table = [&](const char* argument, const Tensor& t, int64_t* num_rows) {
    const auto view = table<const int32_t>(kOp, argument, t, kInt32, Access::kRead);
    *num_rows = std::min(*num_rows, t.size(0));
    overlaps.read(argument, bytes_of(view));
    return view;
  };
  if (source_block_table) args.source = block_table("source_block_table", *source_block_table, &num_requests);
  // Both are about positions, and without a source table the entries are host rows already.
  const auto needs_source = [&](const char* argument, const OptionalTensor& t) {
    if (t && !source_block_table) fail(kOp, argument, "be None without source_block_table", "a tensor");
  };
  needs_source("resident_block_table", resident_block_table);
  needs_source("stable_lengths", stable_lengths);
  if (resident_block_table)
    args.resident = block_table("resident_block_table", *resident_block_table, &num_states);
  if (!stable_lengths) return;
  args.stable_lengths = ids(kOp, "stable_lengths", *stable_lengths, 1);
  num_requests = std::min(num_requests, stable_lengths->size(0));
  overlaps.read("stable_lengths", bytes_of(args.stable_lengths));
}

void Call::sizes(const Tensor& hot_block_table, int64_t host_rows, int64_t num_blocks, int64_t block_size,
                 OptionalInt source_block_size, OptionalInt attention_block_stride,
                 OptionalInt max_union_rows, OptionalInt resident_block_size) {
  check_range(kOp, "host_rows", host_rows, 0, kInt32Max);
  check_range(kOp, "block_size", block_size, 1, kInt32Max);
  check_range(kOp, "num_blocks", num_blocks, 0, kInt32Max / block_size);
  if (source_block_size) check_range(kOp, "source_block_size", *source_block_size, 1, kInt32Max);
  if (resident_block_size) check_range(kOp, "resident_block_size", *resident_block_size, 1, kInt32Max);
  if (attention_block_stride) {
    // The largest attention index, that of the slab's last row, must fit int32.
    const int64_t room = kInt32Max - (block_size - 1);
    check_range(kOp, "attention_block_stride", *attention_block_stride, block_size,
                num_blocks > 1 ? room / (num_blocks - 1) : kInt32Max);
  }
  const auto slots = std::to_string(args.hot_size);
  if (args.hot_size > kMaxHotSize) fail(kOp, "hot_owner", cat("have at most ", kMaxHotSize, " slots"), slots);
  if (args.hot_size < args.top_k)
    fail(kOp, "hot_owner", cat("have at least top_k = ", args.top_k, " slots"), slots);
  if (max_union_rows) check_range(kOp, "max_union_rows", *max_union_rows, args.top_k, args.hot_size);
  const int64_t columns = (args.hot_size + block_size - 1) / block_size;
  if (hot_block_table.size(1) < columns)
    fail(kOp, "hot_block_table", cat("have at least ", columns, " columns for hot_size = ", slots),
         std::to_string(hot_block_table.size(1)));
  args.host_rows = host_rows;
  args.num_blocks = num_blocks;
  args.page = PageSize(block_size);
  args.source_page = PageSize(source_block_size.value_or(block_size));
  args.resident_page = PageSize(resident_block_size.value_or(block_size));
  args.attention_block_stride = attention_block_stride.value_or(block_size);
  args.union_limit = max_union_rows.value_or(args.hot_size);
}

void resolve_runs(const ResolveArgs& args, const Chains& chains, int64_t rows) {
  const int64_t num_runs = static_cast<int64_t>(chains.runs.size());
  if (num_runs == 0) return;
  const int64_t bytes_per_run = rows * args.top_k * 16 / num_runs + args.hot_size * 6;
  const auto longest = std::max_element(chains.runs.begin(), chains.runs.end(),
                                        [](const auto& a, const auto& b) { return a.rows < b.rows; });
  if (longest->rows * args.top_k > args.union_limit) check_unions(args, chains, bytes_per_run);
  parallel_rows(static_cast<int64_t>(chains.heads.size()), bytes_per_run, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head)
      for (int32_t run = chains.heads[head]; run >= 0; run = chains.next[run])
        thread_resolver().resolve(args, chains.runs[run]);
  });
}

void resolve_cpu(const Tensor& topk_indices, const Tensor& request_ids, const Tensor& request_state_indices,
                 const OptionalTensor& source_block_table, const Tensor& hot_block_table,
                 const Tensor& hot_owner, const Tensor& lru_slots, const Tensor& attention_indices,
                 const Tensor& valid_counts, const Tensor& refill_host_rows, const Tensor& refill_hot_rows,
                 const Tensor& refill_counts, int64_t host_rows, int64_t num_blocks, int64_t block_size,
                 OptionalInt source_block_size, OptionalInt attention_block_stride, StringHandle layout,
                 OptionalInt max_union_rows, const OptionalTensor& resident_block_table,
                 OptionalInt resident_block_size, const OptionalTensor& stable_lengths,
                 const OptionalTensor& physical_rows, const OptionalTensor& resolved_host_rows,
                 const OptionalTensor& miss_mask, const OptionalTensor& resident_counts,
                 const OptionalTensor& stats) {
  const std::string layout_name = take_string(layout);  // first, since what follows may throw
  Call call;
  ResolveArgs& args = call.args;
  call.batch(topk_indices, request_ids, request_state_indices);
  call.state(hot_block_table, hot_owner, lru_slots);
  args.attention_indices = call.entries("attention_indices", attention_indices);
  args.refill_host_rows = call.entries("refill_host_rows", refill_host_rows);
  args.refill_hot_rows = call.entries("refill_hot_rows", refill_hot_rows);
  args.physical_rows = call.entries("physical_rows", physical_rows);
  args.resolved_host_rows = call.entries("resolved_host_rows", resolved_host_rows);
  args.miss_mask = call.entries("miss_mask", miss_mask);
  args.valid_counts = call.counts("valid_counts", valid_counts);
  args.refill_counts = call.counts("refill_counts", refill_counts);
  args.resident_counts = call.counts("resident_counts", resident_counts);
  call.add_stats(stats);
  call.choose_layout(layout_name);
  call.source(source_block_table, resident_block_table, stable_lengths);
  call.sizes(hot_block_table, host_rows, num_blocks, block_size, source_block_size, attention_block_stride,
             max_union_rows, resident_block_size);
  call.overlaps.check();
  args.isa = current_isa();

  // Without entries there is no state to touch, and every row is answered like padding.
  if (args.top_k == 0) call.num_states = 0;
  thread_local Chains scratch;
  build_chains(call.requests, call.states, call.num_requests, call.num_states, scratch);
  resolve_runs(args, scratch, call.rows);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(hisparse, CPU, m) { m.impl("resolve", TORCH_BOX(&resolve_cpu)); }

}  // namespace hisparse
