#include "resolver/resolve.h"

#include <algorithm>
#include <cstring>

namespace hisparse {
namespace {

template <class T>
void grow(std::vector<T>& v, int64_t size) {
  if (static_cast<int64_t>(v.size()) < size) v.resize(size);
}

// f(position) for every entry of a row, of either dtype and any stride.
template <class F>
void map_entries(const Ids& topk, int64_t row, int32_t* to, const F& f) noexcept {
  for (int64_t col = 0; col < topk.cols; ++col) to[col] = static_cast<int32_t>(f(topk(row, col)));
}

// A row of positions that the vector forms can read, or null.
const int32_t* contiguous_row(const Ids& topk, int64_t row) noexcept {
  if (topk.wide || topk.col_stride != 1) return nullptr;
  return static_cast<const int32_t*>(topk.base) + row * topk.row_stride;
}

void find_entries(Isa isa, const Ids& topk, int64_t row, const PageRows& where, int32_t* to) noexcept {
  const int32_t* positions = contiguous_row(topk, row);
  if (positions != nullptr) return find_rows(isa, where, positions, topk.cols, to);
  map_entries(topk, row, to, where);
}

// Whether every position of a row has a resident row; counts those that have one. A negative position has
// none and needs none.
bool all_resident(const Ids& topk, int64_t row, const int32_t* resident, int64_t* answered) noexcept {
  const int32_t* positions = contiguous_row(topk, row);
  if (positions == nullptr) return false;
  int32_t missing = 0, found = 0;
  for (int64_t col = 0; col < topk.cols; ++col) {
    missing |= (resident[col] < 0) & (positions[col] >= 0);
    found += resident[col] >= 0;
  }
  *answered = found;
  return missing == 0;
}

}  // namespace

bool RunResolver::exceeds_limit(const ResolveArgs& args, const ResolveRun& run) {
  return run.state >= 0 && run.rows * args.top_k > args.union_limit && !translate(args, run);
}

void RunResolver::resolve(const ResolveArgs& args, const ResolveRun& run) {
  if (run.state < 0) return answer_padding(args, run);
  translate(args, run);
  num_misses_ = hit_references_ = loads_ = 0;
  if (args.stable_lengths && (union_.size() > 0 || resident_entries_ > 0)) drop_unstable(args, run);
  if (union_.size() > 0) {
    int32_t* owner = args.hot_owner.row(run.state);
    int16_t* lru = args.lru_slots.row(run.state);
    grow(slots_, union_.size());
    grow(physical_, union_.size());
    grow(misses_, union_.size());
    grow(bits_, (args.hot_size + 31) / 32);
    grow(hits_, args.hot_size + kPartitionPadding);
    grow(others_, args.hot_size + kPartitionPadding);
    num_matched_ = match_owners(args.isa, union_, owner, args.hot_size, bits_.data(), slots_.data());
    split_lru(args, owner, lru);
    assign(args, run, owner, lru);
  }
  for (int64_t row = 0; row < run.rows; ++row) answer_row(args, run, row);
  if (args.stats) {
    __atomic_fetch_add(&args.stats[0], hit_references_ - loads_, __ATOMIC_RELAXED);
    __atomic_fetch_add(&args.stats[1], loads_, __ATOMIC_RELAXED);
  }
}

// Fills answers_, host_ and the union; false (and stops) when the union exceeds the limit.
bool RunResolver::translate(const ResolveArgs& args, const ResolveRun& run) {
  const int64_t entries = run.rows * args.top_k;
  union_.reset(args.host_rows, std::min(entries, args.union_limit + 1));
  grow(answers_, entries);
  grow(host_, entries);
  if (args.resident) grow(resident_, args.top_k);
  resident_entries_ = 0;
  const PageRows source(args.source.row(run.request), args.source.cols, args.source_page, args.host_rows);
  const PageRows resident(args.resident.row(run.state), args.resident.cols, args.resident_page,
                          args.num_blocks * args.page.rows);
  const auto given_row = [&](int64_t id) { return id >= 0 && id < args.host_rows ? id : -1; };
  int64_t answered = 0;
  for (int64_t row = 0; row < run.rows; ++row) {
    const int64_t at = row * args.top_k;
    const int64_t first = run.first + row;
    if (args.resident) {
      find_entries(args.isa, args.topk_indices, first, resident, resident_.data());
      // Where resident pages answer everything, as with short contexts, nothing needs a host row.
      if (!args.resolved_host_rows && all_resident(args.topk_indices, first, resident_.data(), &answered)) {
        std::copy_n(resident_.data(), args.top_k, answers_.data() + at);
        resident_entries_ += answered;
        continue;
      }
    }
    if (args.source) find_entries(args.isa, args.topk_indices, first, source, host_.data() + at);
    else map_entries(args.topk_indices, first, host_.data() + at, given_row);
    resident_entries_ +=
        unite(args.isa, union_, host_.data() + at, args.resident ? resident_.data() : nullptr, args.top_k,
              args.union_limit, answers_.data() + at);
    if (union_.size() > args.union_limit) return false;
  }
  return true;
}

// Forgets every hot copy of a position that may have been rewritten.
void RunResolver::drop_unstable(const ResolveArgs& args, const ResolveRun& run) {
  const int64_t stable = std::max<int64_t>(0, args.stable_lengths(run.request));
  const int32_t* source = args.source.row(run.request);
  const PageSize& pages = args.source_page;
  const int64_t first_page = args.source_page.page(stable);
  unstable_.clear();
  for (int64_t page = first_page; page < args.source.cols; ++page) {
    if (source[page] <= 0) continue;
    // Not cut off at host_rows: the host cache may have been larger when the row was loaded.
    const int64_t start = pages.start(source[page]);
    const int64_t offset = page == first_page ? stable - pages.start(page) : 0;
    unstable_.push_back({start + offset, start + pages.rows});
  }
  int32_t* owner = args.hot_owner.row(run.state);
  // The tail is a page or two in the usual case, where comparing every owner with it is fastest.
  if (unstable_.size() <= kFewPages) {
    for (const auto& [low, high] : unstable_)
      for (int64_t slot = 0; slot < args.hot_size; ++slot)
        if (owner[slot] >= low && owner[slot] < high) owner[slot] = -1;
    return;
  }
  std::sort(unstable_.begin(), unstable_.end());
  for (int64_t slot = 0; slot < args.hot_size; ++slot) {
    const auto next = std::upper_bound(unstable_.begin(), unstable_.end(),
                                       std::pair<int64_t, int64_t>{owner[slot], INT64_MAX});
    if (next != unstable_.begin() && owner[slot] < std::prev(next)->second) owner[slot] = -1;
  }
}

void RunResolver::split_lru(const ResolveArgs& args, const int32_t* owner, const int16_t* lru) noexcept {
  const Partition split =
      partition_lru(args.isa, lru, args.hot_size, bits_.data(), hits_.data(), others_.data());
  num_hits_ = split.hits;
  num_others_ = split.others;
  if (!split.in_range || !hits_are_exact(args)) split_lru_exactly(args, owner, lru);
}

// True when every matched slot stands in the LRU row once and no two have one owner. Leaves bits_ empty.
bool RunResolver::hits_are_exact(const ResolveArgs& args) noexcept {
  const int64_t owned = union_.size() - std::count(slots_.data(), slots_.data() + union_.size(), -1);
  bool exact = num_hits_ == num_matched_ && owned == num_matched_;
  for (int64_t i = 0; i < num_hits_ && exact; ++i) {
    exact = has_bit(bits_.data(), hits_[i]);
    clear_bit(bits_.data(), hits_[i]);
  }
  if (!exact) std::fill_n(bits_.begin(), (args.hot_size + 31) / 32, 0u);
  return exact;
}

// The contract to the letter, for a state that is corrupted: an entry out of range is no hit, a slot that is
// not in the LRU row is never found, and the oldest of several slots with one owner answers.
void RunResolver::split_lru_exactly(const ResolveArgs& args, const int32_t* owner,
                                    const int16_t* lru) noexcept {
  std::fill_n(bits_.begin(), (args.hot_size + 31) / 32, 0u);
  std::fill_n(slots_.begin(), union_.size(), -1);
  num_hits_ = num_others_ = 0;
  for (int64_t i = 0; i < args.hot_size; ++i) {
    const int16_t slot = lru[i];
    const int32_t index = slot >= 0 && slot < args.hot_size ? union_.find(owner[slot]) : -1;
    if (index < 0) {
      others_[num_others_++] = slot;
      continue;
    }
    hits_[num_hits_++] = slot;
    if (slots_[index] < 0) slots_[index] = slot;
  }
}

// Gives misses their slots, writes the plan, and rewrites owner and LRU. bits_ is empty on entry.
void RunResolver::assign(const ResolveArgs& args, const ResolveRun& run, int32_t* owner,
                         int16_t* lru) noexcept {
  const int64_t size = union_.size();
  for (int64_t number = 0; number < size; ++number) {
    misses_[num_misses_] = static_cast<int32_t>(number);
    num_misses_ += slots_[number] < 0;
  }
  // With an intact state there are always enough slots; a corrupted one may run out.
  const int64_t victims = std::min(num_misses_, num_others_);
  for (int64_t miss = 0; miss < victims; ++miss) {
    const int16_t victim = others_[miss];
    if (victim < 0 || victim >= args.hot_size || has_bit(bits_.data(), victim)) continue;
    set_bit(bits_.data(), victim);  // a second entry for the slot must not take it again
    slots_[misses_[miss]] = victim;
  }
  const PageRows hot(args.hot_blocks.row(run.request), args.hot_blocks.cols, args.page,
                     args.num_blocks * args.page.rows);
  find_rows(args.isa, hot, slots_.data(), size, physical_.data());
  if (args.miss_mask) first_use_.assign(size, 0);
  write_plan(args, run, owner);
  const auto append = [&lru](const int16_t* from, int64_t count) {
    std::memcpy(lru, from, count * sizeof(int16_t));
    lru += count;
  };
  append(others_.data() + victims, num_others_ - victims);
  append(others_.data(), victims);
  append(hits_.data(), num_hits_);
}

// The misses, packed from the run's first row on; a slot without a physical row owns nothing.
void RunResolver::write_plan(const ResolveArgs& args, const ResolveRun& run, int32_t* owner) noexcept {
  for (int64_t row = run.first, miss = 0; miss < num_misses_; ++row) {
    int32_t* host = args.refill_host_rows.row(row);
    int32_t* hot = args.refill_hot_rows.row(row);
    for (const int64_t end = std::min(miss + args.top_k, num_misses_); miss < end; ++miss) {
      const int32_t number = misses_[miss], slot = slots_[number], physical = physical_[number];
      const bool usable = physical >= 0;
      *host++ = union_.key(number);
      *hot++ = physical;
      if (slot >= 0) owner[slot] = usable ? union_.key(number) : -1;
      if (args.miss_mask) first_use_[number] = usable;
      loads_ += usable;
    }
  }
}

void RunResolver::answer_row(const ResolveArgs& args, const ResolveRun& run, int64_t row) noexcept {
  const int64_t out = run.first + row;
  const int32_t* answers = answers_.data() + row * args.top_k;
  const int64_t valid = answer_entries(
      args.isa, {args.page, args.attention_block_stride}, answers, args.top_k, physical_.data(), args.prefix,
      args.attention_indices.row(out), args.physical_rows ? args.physical_rows.row(out) : nullptr);
  if (args.resolved_host_rows) list_host_rows(args, row, args.resolved_host_rows.row(out), valid);
  if (args.miss_mask) mark_loads(args, row, args.miss_mask.row(out));
  const int64_t resident = count_resident(answers, args.top_k, valid);
  args.valid_counts[out] = static_cast<int32_t>(valid);
  if (args.resident_counts) args.resident_counts[out] = static_cast<int32_t>(resident);
  args.refill_counts[out] =
      static_cast<int32_t>(std::clamp<int64_t>(num_misses_ - row * args.top_k, 0, args.top_k));
  hit_references_ += valid - resident;
}

int64_t RunResolver::count_resident(const int32_t* answers, int64_t count, int64_t valid) const noexcept {
  if (union_.size() == 0) return valid;
  if (resident_entries_ == 0) return 0;
  return std::count_if(answers, answers + count, [](int32_t answer) { return answer >= 0; });
}

bool RunResolver::is_answered(int32_t answer) const noexcept {
  return answer >= 0 || (answer != kNothing && physical_[union_number(answer)] >= 0);
}

// Host rows in the layout of the entries; the prefix layout keeps those of unanswered entries behind the
// others.
void RunResolver::list_host_rows(const ResolveArgs& args, int64_t row, int32_t* to, int64_t valid) noexcept {
  const int32_t* host = host_.data() + row * args.top_k;
  const int32_t* answers = answers_.data() + row * args.top_k;
  if (!args.prefix) {
    std::copy_n(host, args.top_k, to);
    return;
  }
  int32_t* rest = to + valid;
  for (int64_t col = 0; col < args.top_k; ++col) *(is_answered(answers[col]) ? to : rest)++ = host[col];
}

// 1 where an entry is the first reference, in row order, to a row that this run loads.
void RunResolver::mark_loads(const ResolveArgs& args, int64_t row, int32_t* to) noexcept {
  const int32_t* answers = answers_.data() + row * args.top_k;
  int64_t at = 0;
  for (int64_t col = 0; col < args.top_k; ++col) {
    const bool answered = is_answered(answers[col]);
    if (args.prefix && !answered) continue;
    to[at] = 0;
    if (answered && answers[col] < kNothing) std::swap(to[at], first_use_[union_number(answers[col])]);
    ++at;
  }
  std::fill(to + at, to + args.top_k, 0);
}

void RunResolver::answer_padding(const ResolveArgs& args, const ResolveRun& run) noexcept {
  for (int64_t row = run.first; row < run.first + run.rows; ++row) {
    for (const auto* output : {&args.attention_indices, &args.physical_rows, &args.resolved_host_rows})
      if (*output) std::fill_n(output->row(row), args.top_k, -1);
    if (args.miss_mask) std::fill_n(args.miss_mask.row(row), args.top_k, 0);
    args.valid_counts[row] = 0;
    args.refill_counts[row] = 0;
    if (args.resident_counts) args.resident_counts[row] = 0;
  }
}

}  // namespace hisparse
