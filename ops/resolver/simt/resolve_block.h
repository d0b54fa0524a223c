// resolve, as a block of threads does it: the portable body of the CUDA and the Ascend 950 kernel.
//
// A block takes the runs of one state row, in row order; other blocks take other states, so blocks share
// nothing but the statistics. Per run:
//   unite    entries -> host rows, entered in a hash table in shared memory with the entry of first reference
//   match    one walk of the LRU row; a slot whose owner is in the table is a hit. Others and hits keep their
//   order assign   the m-th host row without a slot, in order of first reference, takes the m-th other answer
//   entries, counts, plan rewrite  LRU = remaining others | assigned | hits
// Order comes from ballots and prefix sums, never from which thread was first, so results are the same bit
// for bit on every machine. Between passes an entry waits in attention_indices, which is written last.
#pragma once

#include "resolver/simt/operands.h"

namespace hisparse::simt {

constexpr int32_t kNone = -1;
constexpr int32_t kEmpty = -1;           // no key
constexpr int32_t kFirst = 0x7FFFFFFF;   // no reference yet
constexpr int32_t kHit = -0x10000;       // value of a hit: kHit + its LRU position
constexpr int32_t kMiss = -0x20000;      // of a miss: kMiss - its number
constexpr int32_t kUnplaced = -0x40000;  // of a miss that got no slot

enum Scalar { kKeys, kOverflow, kCorrupt, kMisses, kLoads, kNext };

class Block {
 public:
  HISPARSE_SIMT Block(const ResolveOperands& operands, HISPARSE_SHARED int32_t* shared)
      : o_(operands),
        keys_(shared + operands.shared.keys),
        values_(shared + operands.shared.values),
        order_((HISPARSE_SHARED int16_t*)(shared + operands.shared.order)),
        seen_((HISPARSE_SHARED uint32_t*)(shared + operands.shared.seen)),
        sums_(shared + operands.shared.sums),
        scalars_(shared + operands.shared.scalars),
        thread_(thread()),
        threads_(threads()) {}

  // What block `number` of `count` has to do.
  HISPARSE_SIMT void work(int64_t number, int64_t count) {
    for (int64_t row = number; row < o_.rows; row += count) start_at(row);
  }

 private:
  struct Found {
    int32_t host, resident;
  };
  struct Answer {
    int32_t physical, attention;
  };

  // --- lookups -----------------------------------------------------------------------------------

  HISPARSE_SIMT static int64_t read(const IdList& list, int64_t row, int64_t column) {
    const int64_t at = row * list.row_stride + column * list.column_stride;
    return list.wide ? ((HISPARSE_GLOBAL const int64_t*)list.base)[at] : list.base[at];
  }

  HISPARSE_SIMT static int64_t page_of(const Pages& pages, int64_t row) {
    return pages.shift >= 0 ? row >> pages.shift : row / pages.rows;
  }

  HISPARSE_SIMT int64_t request_of(int64_t row) const { return read(o_.request_ids, row, 0); }

  HISPARSE_SIMT int64_t state_of(int64_t request) const {
    if (request < 0 || request >= o_.num_requests || o_.top_k == 0) return kNone;
    const int64_t state = read(o_.request_state_indices, request, 0);
    return state >= 0 && state < o_.num_states ? state : kNone;
  }

  // Row of a page that a block table names, below `limit`, or -1.
  HISPARSE_SIMT static int32_t row_in(const Rows<const int32_t>& table, int64_t table_row, int64_t columns,
                                      const Pages& pages, int64_t position, int64_t limit) {
    const int64_t page = page_of(pages, position);
    if (page >= columns) return kNone;
    const int64_t block = table.base[table_row * table.stride + page];
    if (block <= 0) return kNone;
    const int64_t row = block * pages.rows + (position - page * pages.rows);
    return row < limit ? static_cast<int32_t>(row) : kNone;
  }

  HISPARSE_SIMT Found translate(int64_t row, int64_t column) const {
    const int64_t position = read(o_.topk_indices, row, column);
    Found found{kNone, kNone};
    if (position < 0) return found;
    if (o_.translated) {
      if (position < o_.host_rows) found.host = static_cast<int32_t>(position);
      return found;
    }
    found.host =
        row_in(o_.source_block_table, request_, o_.source_columns, o_.source_page, position, o_.host_rows);
    if (o_.resident_block_table.base != nullptr)
      found.resident = row_in(o_.resident_block_table, state_, o_.resident_columns, o_.resident_page,
                              position, o_.num_blocks * o_.page.rows);
    return found;
  }

  HISPARSE_SIMT Answer at_row(int64_t physical) const {
    const int64_t block = page_of(o_.page, physical);
    const int64_t offset = physical - block * o_.page.rows;
    return {static_cast<int32_t>(physical), static_cast<int32_t>(block * o_.attention_block_stride + offset)};
  }

  HISPARSE_SIMT Answer at_slot(int64_t slot) const {
    const int64_t column = page_of(o_.page, slot);
    const int64_t block = o_.hot_block_table.base[request_ * o_.hot_block_table.stride + column];
    if (block <= 0 || block >= o_.num_blocks) return {kNone, kNone};
    return at_row(block * o_.page.rows + (slot - column * o_.page.rows));
  }

  HISPARSE_SIMT HISPARSE_GLOBAL int32_t* owner() const {
    return o_.hot_owner.base + state_ * o_.hot_owner.stride;
  }
  HISPARSE_SIMT HISPARSE_GLOBAL int16_t* lru() const {
    return o_.lru_slots.base + state_ * o_.lru_slots.stride;
  }
  HISPARSE_SIMT bool is_slot(int32_t slot) const { return slot >= 0 && slot < o_.hot_size; }

  // The entry's place to wait: an answer (>= 0: a resident row), kNone, or its hash place and whether it
  // loads.
  HISPARSE_SIMT HISPARSE_GLOBAL int32_t& waiting(int64_t entry) const {
    const int64_t row = entry / o_.top_k;
    return o_.attention_indices.base[(first_ + row) * o_.attention_indices.stride + (entry - row * o_.top_k)];
  }
  HISPARSE_SIMT static int32_t wait_for(int32_t place, bool loads) { return -2 - (2 * place + loads); }
  HISPARSE_SIMT static int32_t place_of(int32_t waiting) { return (-2 - waiting) >> 1; }
  HISPARSE_SIMT static bool loads(int32_t waiting) { return waiting <= -2 && ((-2 - waiting) & 1) != 0; }

  // --- the hash table ----------------------------------------------------------------------------

  HISPARSE_SIMT int32_t home_of(int32_t key) const {
    const uint32_t hash = static_cast<uint32_t>(key) * 2654435769u;  // 2^32 / golden ratio; top bits count
    return static_cast<int32_t>((static_cast<uint64_t>(hash) * static_cast<uint64_t>(o_.shared.places)) >>
                                32);
  }

  // The key's place, whose value becomes at most `value`; -1 if the table is full.
  HISPARSE_SIMT int32_t insert(int32_t key, int32_t value) {
    const int32_t places = static_cast<int32_t>(o_.shared.places);
    int32_t at = home_of(key);
    for (int32_t probes = 0; probes < places; ++probes) {
      const int32_t there = shared_cas(keys_ + at, kEmpty, key);
      if (there == kEmpty) shared_add(scalars_ + kKeys, 1);
      if (there == kEmpty || there == key) {
        shared_min(values_ + at, value);
        return at;
      }
      at = at + 1 < places ? at + 1 : 0;
    }
    return kNone;
  }

  HISPARSE_SIMT int32_t find(int32_t key) const {
    const int32_t places = static_cast<int32_t>(o_.shared.places);
    if (key < 0) return kNone;
    int32_t at = home_of(key);
    for (int32_t probes = 0; probes < places; ++probes) {
      if (keys_[at] == key) return at;
      if (keys_[at] == kEmpty) return kNone;
      at = at + 1 < places ? at + 1 : 0;
    }
    return kNone;
  }

  HISPARSE_SIMT void clear_table() {
    barrier();  // others may still read
    for (int64_t i = thread_; i < o_.shared.places; i += threads_) {
      keys_[i] = kEmpty;
      values_[i] = kFirst;
    }
    if (thread_ == 0)
      for (int32_t i = 0; i < static_cast<int32_t>(kScalars); ++i) scalars_[i] = 0;
    barrier();
  }

  // --- all threads together ----------------------------------------------------------------------

  // How many threads before this one have the flag, and how many of all. One barrier.
  HISPARSE_SIMT uint32_t rank(bool flag, uint32_t* total) {
    const uint32_t lane = thread_ % kWarp, warp = thread_ / kWarp, warps = (threads_ + kWarp - 1) / kWarp;
    HISPARSE_SHARED int32_t* sums = sums_ + parity_ * kMaxWarps;
    parity_ ^= 1;  // the next call must not write what slow threads still read
    const uint64_t mask = ballot(flag);
    if (lane == 0) sums[warp] = static_cast<int32_t>(count_bits(mask));
    barrier();
    uint32_t before = count_bits(mask & ((uint64_t{1} << lane) - 1));
    uint32_t all = 0;
    for (uint32_t w = 0; w < warps; ++w) {
      if (w < warp) before += static_cast<uint32_t>(sums[w]);
      all += static_cast<uint32_t>(sums[w]);
    }
    *total = all;
    return before;
  }

  HISPARSE_SIMT uint32_t count(bool flag) {
    uint32_t total;
    rank(flag, &total);
    return total;
  }

  // --- runs --------------------------------------------------------------------------------------

  HISPARSE_SIMT int64_t end_of_run(int64_t first) const {
    const int64_t request = request_of(first);
    int64_t end = first + 1;
    while (end < o_.rows && request_of(end) == request) ++end;
    return end;
  }

  // First row in [from, to) of the state, or `to`. Its barriers also part the runs of a state.
  HISPARSE_SIMT int64_t row_with_state(int64_t state, int64_t from, int64_t to) {
    barrier();
    if (thread_ == 0) scalars_[kNext] = static_cast<int32_t>(to);
    barrier();
    for (int64_t row = from + thread_; row < to; row += threads_)
      if (state_of(request_of(row)) == state) {
        shared_min(scalars_ + kNext, static_cast<int32_t>(row));
        break;
      }
    barrier();
    return scalars_[kNext];
  }

  HISPARSE_SIMT void start_at(int64_t row) {
    if (row > 0 && request_of(row - 1) == request_of(row)) return;
    const int64_t state = state_of(request_of(row));
    if (state < 0) {
      first_ = row;
      end_ = end_of_run(row);
      answer_padding();
      return;
    }
    // Runs of one state are transactions in row order: the block of the first does them all.
    if (row_with_state(state, 0, row) < row) return;
    for (int64_t first = row; first < o_.rows; first = row_with_state(state, end_, o_.rows)) {
      first_ = first;
      end_ = end_of_run(first);
      request_ = request_of(first);
      state_ = state;
      resolve();
    }
  }

  HISPARSE_SIMT void resolve() {
    entries_ = (end_ - first_) * o_.top_k;
    if (o_.stable_lengths.base != nullptr && has_valid_entry()) drop_unstable();
    clear_table();
    unite();
    const int32_t keys = scalars_[kKeys];
    if (scalars_[kOverflow] != 0 || keys > o_.union_limit) {
      // More than the hot buffer may give: the caller broke a promise; nothing is touched.
      answer_padding();
      return;
    }
    misses_ = 0;
    if (keys > 0) {
      match();
      assign();
    }
    answer();
    if (keys > 0) rewrite_lru();
  }

  HISPARSE_SIMT void answer_padding() {
    for (int64_t row = first_; row < end_; ++row) {
      for (int64_t column = thread_; column < o_.top_k; column += threads_) {
        o_.attention_indices.base[row * o_.attention_indices.stride + column] = kNone;
        write(o_.physical_rows, row, column, kNone);
        write(o_.resolved_host_rows, row, column, kNone);
        write(o_.miss_mask, row, column, 0);
      }
      if (thread_ == 0) write_counts(row, 0, 0, 0);
    }
  }

  HISPARSE_SIMT static void write(const Rows<int32_t>& table, int64_t row, int64_t column, int32_t value) {
    if (table.base != nullptr) table.base[row * table.stride + column] = value;
  }

  HISPARSE_SIMT void write_counts(int64_t row, int32_t valid, int32_t refills, int32_t residents) const {
    o_.valid_counts.base[row * o_.valid_counts.stride] = valid;
    o_.refill_counts.base[row * o_.refill_counts.stride] = refills;
    if (o_.resident_counts.base != nullptr)
      o_.resident_counts.base[row * o_.resident_counts.stride] = residents;
  }

  // --- stable lengths ----------------------------------------------------------------------------

  HISPARSE_SIMT bool has_valid_entry() {
    for (int64_t base = 0; base < entries_; base += threads_) {
      const int64_t entry = base + thread_;
      bool valid = false;
      if (entry < entries_) {
        const int64_t row = entry / o_.top_k;
        const Found found = translate(first_ + row, entry - row * o_.top_k);
        valid = found.host >= 0 || found.resident >= 0;
      }
      if (count(valid) > 0) return true;
    }
    return false;
  }

  // Forget hot copies of positions at or past the stable length. The table holds source blocks of that tail,
  // with the offset at which each one's tail begins; as many at a time as it has room for.
  HISPARSE_SIMT void drop_unstable() {
    int64_t stable = read(o_.stable_lengths, request_, 0);
    if (stable < 0) stable = 0;
    const int64_t first_page = page_of(o_.source_page, stable);
    const int64_t chunk = o_.shared.places / kTablePlaces;
    for (int64_t from = first_page; from < o_.source_columns; from += chunk) {
      const int64_t to = from + chunk < o_.source_columns ? from + chunk : o_.source_columns;
      clear_table();
      for (int64_t page = from + thread_; page < to; page += threads_) {
        const int32_t block = o_.source_block_table.base[request_ * o_.source_block_table.stride + page];
        const int64_t begin = page == first_page ? stable - page * o_.source_page.rows : 0;
        if (block > 0) insert(block, static_cast<int32_t>(begin));
      }
      barrier();
      for (int64_t slot = thread_; slot < o_.hot_size; slot += threads_) {
        const int64_t row = owner()[slot];
        if (row < 0) continue;
        const int64_t block = page_of(o_.source_page, row);
        const int32_t place = find(static_cast<int32_t>(block));
        if (place >= 0 && row - block * o_.source_page.rows >= values_[place]) owner()[slot] = kNone;
      }
    }
  }

  // --- the passes --------------------------------------------------------------------------------

  HISPARSE_SIMT void unite() {
    for (int64_t entry = thread_; entry < entries_; entry += threads_) {
      const int64_t row = entry / o_.top_k;
      const Found found = translate(first_ + row, entry - row * o_.top_k);
      int32_t wait = found.resident;
      if (found.resident < 0 && found.host >= 0) {
        const int32_t place = insert(found.host, static_cast<int32_t>(entry));
        if (place >= 0) wait = wait_for(place, false);
        else shared_add(scalars_ + kOverflow, 1);
      }
      waiting(entry) = wait;
    }
    for (int64_t i = thread_; i < (o_.hot_size + 31) / 32; i += threads_) seen_[i] = 0;
    barrier();
  }

  HISPARSE_SIMT void match() {
    int64_t hits = 0;
    for (int64_t base = 0; base < o_.hot_size; base += threads_) {
      const int64_t i = base + thread_;
      const bool inside = i < o_.hot_size;
      const int32_t slot = inside ? lru()[i] : kNone;
      const int32_t place = is_slot(slot) ? find(owner()[slot]) : kNone;
      uint32_t total;
      const int64_t before = hits + rank(place >= 0, &total);
      if (place >= 0) {
        order_[o_.hot_size - 1 - before] = static_cast<int16_t>(slot);
        shared_min(values_ + place, kHit + static_cast<int32_t>(i));  // of several slots the oldest answers
      } else if (inside) {
        order_[i - before] = static_cast<int16_t>(slot);
        if (is_slot(slot)) {
          const uint32_t bit = 1u << (slot & 31);
          if ((shared_or(seen_ + (slot >> 5), bit) & bit) != 0) shared_add(scalars_ + kCorrupt, 1);
        }
      }
      hits += total;
    }
    others_ = o_.hot_size - hits;
    barrier();
  }

  HISPARSE_SIMT void assign() {
    if (scalars_[kCorrupt] != 0) return assign_in_turn();
    for (int64_t base = 0; base < entries_; base += threads_) {
      const int64_t entry = base + thread_;
      const int32_t wait = entry < entries_ ? waiting(entry) : kNone;
      const int32_t place = wait <= -2 ? place_of(wait) : kNone;
      const bool first = place >= 0 && values_[place] == static_cast<int32_t>(entry);
      uint32_t total;
      const int64_t miss = misses_ + rank(first, &total);
      if (first) {
        const int32_t victim = miss < others_ ? order_[miss] : kNone;
        give(entry, place, miss, is_slot(victim) ? victim : kNone);
      }
      misses_ += total;
      barrier();
    }
  }

  // A slot that stands in the LRU row twice is given once, to the miss that comes first: one thread, in
  // order.
  HISPARSE_SIMT void assign_in_turn() {
    barrier();
    for (int64_t i = thread_; i < (o_.hot_size + 31) / 32; i += threads_) seen_[i] = 0;
    barrier();
    if (thread_ == 0) {
      int64_t miss = 0;
      for (int64_t entry = 0; entry < entries_; ++entry) {
        const int32_t wait = waiting(entry);
        const int32_t place = wait <= -2 ? place_of(wait) : kNone;
        if (place < 0 || values_[place] != static_cast<int32_t>(entry)) continue;
        int32_t victim = miss < others_ ? order_[miss] : kNone;
        if (is_slot(victim)) {
          const uint32_t bit = 1u << (victim & 31);
          if ((seen_[victim >> 5] & bit) != 0) victim = kNone;
          else seen_[victim >> 5] |= bit;
        }
        give(entry, place, miss++, is_slot(victim) ? victim : kNone);
      }
      scalars_[kMisses] = static_cast<int32_t>(miss);
    }
    barrier();
    misses_ = scalars_[kMisses];
  }

  // Miss number `miss`, first referenced by `entry`, gets the slot (-1: none).
  HISPARSE_SIMT void give(int64_t entry, int32_t place, int64_t miss, int32_t slot) {
    const int32_t key = keys_[place];
    const int32_t physical = slot >= 0 ? at_slot(slot).physical : kNone;
    if (slot >= 0) owner()[slot] = physical >= 0 ? key : kNone;
    values_[place] = physical >= 0 ? kMiss - static_cast<int32_t>(miss) : kUnplaced;
    if (physical >= 0) {
      waiting(entry) = wait_for(place, true);
      shared_add(scalars_ + kLoads, 1);
    }
    const int64_t row = miss / o_.top_k;
    write(o_.refill_host_rows, first_ + row, miss - row * o_.top_k, key);
    write(o_.refill_hot_rows, first_ + row, miss - row * o_.top_k, physical);
  }

  HISPARSE_SIMT Answer answer_of(int32_t wait) const {
    if (wait >= 0) return at_row(wait);
    if (wait == kNone) return {kNone, kNone};
    const int32_t value = values_[place_of(wait)];
    if (value == kUnplaced) return {kNone, kNone};
    return at_slot(value > kMiss ? lru()[value - kHit] : order_[kMiss - value]);
  }

  HISPARSE_SIMT void answer() {
    barrier();
    int64_t references = 0;
    for (int64_t row = first_; row < end_; ++row) {
      const int64_t answered = o_.prefix ? count_valid(row) : 0;
      int64_t valid = 0, residents = 0;
      for (int64_t base = 0; base < o_.top_k; base += threads_) {
        const int64_t column = base + thread_;
        const bool inside = column < o_.top_k;
        const int32_t wait = inside ? waiting((row - first_) * o_.top_k + column) : kNone;
        const Answer found = answer_of(wait);
        uint32_t total;
        const int64_t before = valid + rank(found.physical >= 0, &total);
        if (inside) {
          int64_t to = column;
          if (o_.prefix) to = found.physical >= 0 ? before : answered + (column - before);
          // In the prefix layout what is unanswered belongs behind entries that still wait: it follows at the
          // end.
          if (!o_.prefix || found.physical >= 0)
            o_.attention_indices.base[row * o_.attention_indices.stride + to] = found.attention;
          write(o_.physical_rows, row, to, found.physical);
          write(o_.miss_mask, row, to, loads(wait));
          if (o_.resolved_host_rows.base != nullptr)
            write(o_.resolved_host_rows, row, to, translate(row, column).host);
        }
        valid += total;
        if (o_.resident_block_table.base != nullptr) residents += count(wait >= 0);
      }
      if (o_.prefix) {
        barrier();
        for (int64_t column = valid + thread_; column < o_.top_k; column += threads_)
          o_.attention_indices.base[row * o_.attention_indices.stride + column] = kNone;
      }
      int64_t refills = misses_ - (row - first_) * o_.top_k;
      refills = refills < 0 ? 0 : refills < o_.top_k ? refills : o_.top_k;
      if (thread_ == 0)
        write_counts(row, static_cast<int32_t>(valid), static_cast<int32_t>(refills),
                     static_cast<int32_t>(residents));
      references += valid - residents;
    }
    if (thread_ == 0 && o_.stats.base != nullptr) {
      const int64_t loaded = scalars_[kLoads];
      global_add(o_.stats.base, references - loaded);
      global_add(o_.stats.base + o_.stats.stride, loaded);
    }
  }

  HISPARSE_SIMT int64_t count_valid(int64_t row) {
    int64_t valid = 0;
    for (int64_t base = 0; base < o_.top_k; base += threads_) {
      const int64_t column = base + thread_;
      const int32_t wait = column < o_.top_k ? waiting((row - first_) * o_.top_k + column) : kNone;
      valid += count(answer_of(wait).physical >= 0);
    }
    return valid;
  }

  // No thread reads the old row any more: every answer of a tile is found before the barrier of its prefix
  // sum.
  HISPARSE_SIMT void rewrite_lru() {
    const int64_t victims = misses_ < others_ ? misses_ : others_;
    const int64_t kept = others_ - victims;
    for (int64_t i = thread_; i < o_.hot_size; i += threads_) {
      int64_t from = o_.hot_size - 1 - (i - others_);
      if (i < kept) from = i + victims;
      else if (i < others_) from = i - kept;
      lru()[i] = order_[from];
    }
  }

  const ResolveOperands& o_;
  HISPARSE_SHARED int32_t* const keys_;
  HISPARSE_SHARED int32_t* const values_;
  HISPARSE_SHARED int16_t* const order_;
  HISPARSE_SHARED uint32_t* const seen_;
  HISPARSE_SHARED int32_t* const sums_;
  HISPARSE_SHARED int32_t* const scalars_;
  const uint32_t thread_, threads_;
  uint32_t parity_ = 0;
  int64_t first_ = 0, end_ = 0, request_ = kNone, state_ = kNone;
  int64_t entries_ = 0, misses_ = 0, others_ = 0;
};

}  // namespace hisparse::simt
