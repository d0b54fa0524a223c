#include "resolver/resolve.h"

#include <algorithm>
#include <cstring>

namespace hisparse {
namespace {

template <class T>
void grow(std::vector<T>& v, int64_t size) {
  if (static_cast<int64_t>(v.size()) < size) v.resize(size);
}

// Paged rows of which there are `rows`: where a page's row stands, or -1 for the null page and past the end.
struct PagedRows {
  PageSize page;
  int64_t rows;
  int64_t last_block;
  PagedRows(PageSize page_size, int64_t num_rows) noexcept
      : page(page_size), rows(num_rows), last_block(num_rows > 0 ? page_size.page(num_rows - 1) : -1) {}
  int64_t row(int64_t block, int64_t offset) const noexcept {
    if (block <= 0 || block > last_block) return -1;
    const int64_t at = page.start(block) + offset;
    return at < rows ? at : -1;
  }
};

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
    grow(first_use_, union_.size());
    grow(misses_, union_.size());
    grow(bits_, (args.hot_size + 31) / 32);
    grow(hits_, args.hot_size + kPartitionPadding);
    grow(others_, args.hot_size + kPartitionPadding);
    match_owners(args, owner);
    split_lru(args, owner, lru);
    assign(args, run, owner, lru);
  }
  for (int64_t row = 0; row < run.rows; ++row) answer_row(args, run, row);
  if (args.stats) {
    __atomic_fetch_add(&args.stats[0], hit_references_ - loads_, __ATOMIC_RELAXED);
    __atomic_fetch_add(&args.stats[1], loads_, __ATOMIC_RELAXED);
  }
}

bool RunResolver::translate(const ResolveArgs& args, const ResolveRun& run) {
  return args.topk_indices.wide ? translate_rows<int64_t>(args, run) : translate_rows<int32_t>(args, run);
}

// Fills answers_ and the union; false (and stops) when the union exceeds the limit.
template <class Id>
bool RunResolver::translate_rows(const ResolveArgs& args, const ResolveRun& run) {
  const int64_t entries = run.rows * args.top_k;
  union_.reset(std::min(entries, args.union_limit + 1));
  grow(answers_, entries);
  const bool want_host = static_cast<bool>(args.resolved_host_rows);
  if (want_host) grow(host_, entries);
  resident_entries_ = 0;

  const int32_t* source = args.source.row(run.request);
  const int32_t* resident = args.resident.row(run.state);
  const PagedRows host_pages(args.source_page, args.host_rows);
  const PagedRows device_pages(args.resident_page, args.num_blocks * args.page.rows);
  const auto look_up = [](const PagedRows& pages, const int32_t* table, int64_t columns, int64_t position) {
    const int64_t column = pages.page.page(position);
    return column < columns ? pages.row(table[column], position - pages.page.start(column)) : -1;
  };
  for (int64_t row = 0; row < run.rows; ++row) {
    const Id* ids =
        static_cast<const Id*>(args.topk_indices.base) + (run.first + row) * args.topk_indices.row_stride;
    const int64_t at = row * args.top_k;
    for (int64_t col = 0; col < args.top_k; ++col) {
      const int64_t position = ids[col * args.topk_indices.col_stride];
      int64_t host = -1, physical = -1;
      if (position >= 0) {
        if (args.source) host = look_up(host_pages, source, args.source.cols, position);
        else if (position < args.host_rows) host = position;
        if (args.resident) physical = look_up(device_pages, resident, args.resident.cols, position);
      }
      if (want_host) host_[at + col] = static_cast<int32_t>(host);
      if (physical >= 0) {
        answers_[at + col] = static_cast<int32_t>(physical);
        ++resident_entries_;
      } else if (host >= 0) {
        answers_[at + col] = from_union(union_.insert(static_cast<int32_t>(host)));
        if (union_.size() > args.union_limit) return false;
      } else {
        answers_[at + col] = kNothing;
      }
    }
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

void RunResolver::match_slot(int64_t slot, int32_t row) noexcept {
  const int32_t index = union_.find(row);
  if (index < 0) return;
  owners_are_unique_ &= slots_[index].slot < 0;
  slots_[index].slot = static_cast<int16_t>(slot);
  set_bit(bits_.data(), slot);
  ++num_matched_;
}

#if defined(HISPARSE_X86)
namespace {

// Calls match(slot) for every slot whose owner may be in the set; returns how many slots it looked at.
template <class Match>
HISPARSE_TARGET_AVX512 int64_t scan_avx512(const HostRowSet& set, const int32_t* owner, int64_t size,
                                           const Match& match) noexcept {
  int64_t slot = 0;
  for (; slot + 16 <= size; slot += 16)
    for (unsigned lanes = set.may_contain16(_mm512_loadu_si512(owner + slot)); lanes != 0; lanes &= lanes - 1)
      match(slot + __builtin_ctz(lanes));
  return slot;
}

template <class Match>
HISPARSE_TARGET_AVX2 int64_t scan_avx2(const HostRowSet& set, const int32_t* owner, int64_t size,
                                       const Match& match) noexcept {
  int64_t slot = 0;
  for (; slot + 8 <= size; slot += 8) {
    const __m256i rows = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(owner + slot));
    for (unsigned lanes = set.may_contain8(rows); lanes != 0; lanes &= lanes - 1)
      match(slot + __builtin_ctz(lanes));
  }
  return slot;
}

}  // namespace
#endif

// Slots are looked at in slot order, not in LRU order: which slots are hits does not depend on it.
void RunResolver::match_owners(const ResolveArgs& args, const int32_t* owner) noexcept {
  std::fill_n(slots_.begin(), union_.size(), Slot{});
  std::fill_n(bits_.begin(), (args.hot_size + 31) / 32, 0u);
  owners_are_unique_ = true;
  num_matched_ = 0;
  int64_t slot = 0;
#if defined(HISPARSE_X86)
  const auto match = [&](int64_t s) { match_slot(s, owner[s]); };
  if (args.isa == Isa::kAvx512) slot = scan_avx512(union_, owner, args.hot_size, match);
  else if (args.isa == Isa::kAvx2) slot = scan_avx2(union_, owner, args.hot_size, match);
#endif
  for (; slot < args.hot_size; ++slot)
    if (union_.may_contain(owner[slot])) match_slot(slot, owner[slot]);
}

void RunResolver::split_lru(const ResolveArgs& args, const int32_t* owner, const int16_t* lru) noexcept {
  const Partition split =
      partition_lru(args.isa, lru, args.hot_size, bits_.data(), hits_.data(), others_.data());
  num_hits_ = split.hits;
  num_others_ = split.others;
  if (!split.in_range || !owners_are_unique_ || !hits_are_exact(args)) split_lru_exactly(args, owner, lru);
}

// True when every matched slot stands in the LRU row once. Leaves bits_ empty.
bool RunResolver::hits_are_exact(const ResolveArgs& args) noexcept {
  bool exact = num_hits_ == num_matched_;
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
  std::fill_n(slots_.begin(), union_.size(), Slot{});
  num_hits_ = num_others_ = 0;
  for (int64_t i = 0; i < args.hot_size; ++i) {
    const int16_t slot = lru[i];
    const int32_t index = slot >= 0 && slot < args.hot_size ? union_.find(owner[slot]) : -1;
    if (index < 0) {
      others_[num_others_++] = slot;
      continue;
    }
    hits_[num_hits_++] = slot;
    if (slots_[index].slot < 0) slots_[index].slot = slot;
  }
}

RunResolver::Slot RunResolver::place(const ResolveArgs& args, const ResolveRun& run,
                                     int64_t slot) const noexcept {
  Slot placed;
  placed.slot = static_cast<int16_t>(slot);
  const int64_t column = args.page.page(slot);
  const int64_t block = args.hot_blocks.row(run.request)[column];
  if (block <= 0 || block >= args.num_blocks) return placed;
  const int64_t offset = slot - args.page.start(column);
  placed.physical = static_cast<int32_t>(args.page.start(block) + offset);
  placed.attention = static_cast<int32_t>(block * args.attention_block_stride + offset);
  return placed;
}

// Gives misses their slots, writes the plan, and rewrites owner and LRU. bits_ is empty on entry.
void RunResolver::assign(const ResolveArgs& args, const ResolveRun& run, int32_t* owner,
                         int16_t* lru) noexcept {
  for (int64_t index = 0; index < union_.size(); ++index) {
    first_use_[index] = 0;
    if (slots_[index].slot >= 0) slots_[index] = place(args, run, slots_[index].slot);
    else misses_[num_misses_++] = static_cast<int32_t>(index);
  }
  // With an intact state there are always enough slots; a corrupted one may run out.
  const int64_t victims = std::min(num_misses_, num_others_);
  for (int64_t miss = 0; miss < num_misses_; ++miss) {
    const int32_t index = misses_[miss];
    const int16_t victim = miss < victims ? others_[miss] : int16_t{-1};
    if (victim >= 0 && victim < args.hot_size && !has_bit(bits_.data(), victim)) {
      set_bit(bits_.data(), victim);  // a second entry for the slot must not take it again
      slots_[index] = place(args, run, victim);
      const bool usable = slots_[index].physical >= 0;
      owner[victim] = usable ? union_.key(index) : -1;
      first_use_[index] = usable;
      loads_ += usable;
    }
    const int64_t flat_row = run.first + miss / args.top_k, column = miss % args.top_k;
    args.refill_host_rows.row(flat_row)[column] = union_.key(index);
    args.refill_hot_rows.row(flat_row)[column] = slots_[index].physical;
  }
  const auto append = [&lru](const int16_t* from, int64_t count) {
    std::memcpy(lru, from, count * sizeof(int16_t));
    lru += count;
  };
  append(others_.data() + victims, num_others_ - victims);
  append(others_.data(), victims);
  append(hits_.data(), num_hits_);
}

void RunResolver::answer_row(const ResolveArgs& args, const ResolveRun& run, int64_t row) noexcept {
  const int64_t out = run.first + row;
  const int32_t* answers = answers_.data() + row * args.top_k;
  int32_t* attention = args.attention_indices.row(out);
  int32_t* physical = args.physical_rows ? args.physical_rows.row(out) : nullptr;
  int32_t* host = args.resolved_host_rows ? args.resolved_host_rows.row(out) : nullptr;
  int32_t* mask = args.miss_mask ? args.miss_mask.row(out) : nullptr;
  int64_t valid = 0, resident = 0;

  const auto write = [&](int64_t at, int64_t col, const Slot& slot, bool load) {
    attention[at] = slot.attention;
    if (physical != nullptr) physical[at] = slot.physical;
    if (host != nullptr) host[at] = host_[row * args.top_k + col];
    if (mask != nullptr) mask[at] = load;
  };
  const auto find = [&](int64_t col, bool& load) {
    Slot slot;
    load = false;
    if (answers[col] >= 0) {
      const int64_t block = args.page.page(answers[col]);
      slot.physical = answers[col];
      slot.attention =
          static_cast<int32_t>(block * args.attention_block_stride + answers[col] - args.page.start(block));
      ++resident;
    } else if (answers[col] != kNothing) {
      const int64_t index = union_index(answers[col]);
      slot = slots_[index];
      load = first_use_[index];
      first_use_[index] = 0;
    }
    return slot;
  };
  for (int64_t col = 0; col < args.top_k; ++col) {
    bool load;
    const Slot slot = find(col, load);
    const bool answered = slot.physical >= 0;
    if (!args.prefix) write(col, col, slot, load);
    else if (answered) write(valid, col, slot, load);
    valid += answered;
  }
  if (args.prefix) {
    int64_t at = valid;
    for (int64_t col = 0; at < args.top_k; ++col) {
      const bool answered =
          answers[col] >= 0 || (answers[col] != kNothing && slots_[union_index(answers[col])].physical >= 0);
      if (!answered) write(at++, col, Slot{}, false);
    }
  }
  args.valid_counts[out] = static_cast<int32_t>(valid);
  if (args.resident_counts) args.resident_counts[out] = static_cast<int32_t>(resident);
  args.refill_counts[out] =
      static_cast<int32_t>(std::clamp<int64_t>(num_misses_ - row * args.top_k, 0, args.top_k));
  hit_references_ += valid - resident;
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
