// What a user would use instead of resolve, with the same result: an obvious LRU, and the algorithm of the
// public GPU kernels as plain C++. Contiguous int32 tables, one run per `rows_per_run` batch rows.
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

namespace {

struct Case {
  int64_t runs, rows_per_run, top_k, hot_size, host_rows, block_size, prefix;
  int64_t source_cols, hot_cols, resident_cols;
  const int32_t *topk, *states, *source, *hot_blocks, *resident;
  int32_t* owner;
  int16_t* lru;
  int32_t *attention, *valid, *refill_host, *refill_hot, *refill_counts;
};

// What answers the entries of one run; -1 = nothing.
struct Entry {
  int32_t host = -1;
  int32_t resident = -1;
};

Entry translate(const Case& c, int64_t run, int32_t position) {
  Entry entry;
  if (position < 0) return entry;
  const int64_t page = position / c.block_size, offset = position % c.block_size;
  const int64_t state = c.states[run];
  if (page < c.source_cols) {
    const int64_t block = c.source[run * c.source_cols + page];
    const int64_t row = block * c.block_size + offset;
    if (block > 0 && row < c.host_rows) entry.host = static_cast<int32_t>(row);
  }
  if (c.resident != nullptr && page < c.resident_cols) {
    const int64_t block = c.resident[state * c.resident_cols + page];
    if (block > 0) entry.resident = static_cast<int32_t>(block * c.block_size + offset);
  }
  return entry;
}

int32_t physical_row(const Case& c, int64_t run, int64_t slot) {
  const int64_t block = c.hot_blocks[run * c.hot_cols + slot / c.block_size];
  return static_cast<int32_t>(block * c.block_size + slot % c.block_size);
}

// Writes the entries of a run; find(entry) is the physical row of an entry.
template <class Find>
void write_answers(const Case& c, int64_t run, const std::vector<Entry>& entries, int64_t misses,
                   const Find& find) {
  for (int64_t row = 0; row < c.rows_per_run; ++row) {
    const int64_t out = run * c.rows_per_run + row;
    int32_t* attention = c.attention + out * c.top_k;
    int64_t valid = 0;
    for (int64_t col = 0; col < c.top_k; ++col) {
      const int32_t physical = find(entries[row * c.top_k + col]);
      if (!c.prefix) attention[col] = physical;
      else if (physical >= 0) attention[valid] = physical;
      valid += physical >= 0;
    }
    if (c.prefix) std::fill(attention + valid, attention + c.top_k, -1);
    c.valid[out] = static_cast<int32_t>(valid);
    c.refill_counts[out] = static_cast<int32_t>(std::clamp<int64_t>(misses - row * c.top_k, 0, c.top_k));
  }
}

// Entries of a run, and its distinct unresolved host rows in order of first reference.
template <class Enter>
void read_entries(const Case& c, int64_t run, std::vector<Entry>& entries, const Enter& enter) {
  const int64_t count = c.rows_per_run * c.top_k;
  entries.resize(count);
  for (int64_t i = 0; i < count; ++i) {
    entries[i] = translate(c, run, c.topk[run * count + i]);
    if (entries[i].resident < 0 && entries[i].host >= 0) enter(entries[i].host);
  }
}

// --- an obvious LRU: a linked list of slots, and a hash map of what the run needs
// -----------------------------------

struct Slot {
  int32_t slot;
  int32_t owner;
};

struct ListLru {
  std::vector<std::list<Slot>> states;
};

void resolve_with_lists(ListLru& lru, const Case& c, int64_t run) {
  std::list<Slot>& slots = lru.states[c.states[run]];
  std::vector<Entry> entries;
  std::vector<int32_t> order;
  std::unordered_map<int32_t, int32_t> slot_of;  // host row -> slot, -1 until it has one
  read_entries(c, run, entries, [&](int32_t host) {
    if (slot_of.emplace(host, -1).second) order.push_back(host);
  });
  std::list<Slot> hits, loaded;
  for (auto it = slots.begin(); it != slots.end() && !order.empty();) {
    const auto here = it++;
    const auto found = slot_of.find(here->owner);
    if (found == slot_of.end()) continue;
    found->second = here->slot;
    hits.splice(hits.end(), slots, here);
  }
  int64_t misses = 0;
  for (const int32_t host : order) {
    int32_t& slot = slot_of[host];
    if (slot >= 0) continue;
    Slot& victim = slots.front();
    victim.owner = host;
    slot = victim.slot;
    loaded.splice(loaded.end(), slots, slots.begin());
    const int64_t at = run * c.rows_per_run * c.top_k + misses++;
    c.refill_host[at] = host;
    c.refill_hot[at] = physical_row(c, run, slot);
  }
  slots.splice(slots.end(), loaded);
  slots.splice(slots.end(), hits);
  write_answers(c, run, entries, misses, [&](const Entry& entry) {
    if (entry.resident >= 0) return entry.resident;
    return entry.host >= 0 ? physical_row(c, run, slot_of[entry.host]) : -1;
  });
}

// --- the GPU kernels' algorithm: open addressing at a load of one half at most, and a walk over the whole
// LRU row ------

class HashedRows {
 public:
  void reset(int64_t capacity) {
    bits_ = 1;
    while ((int64_t{1} << bits_) < 2 * capacity) ++bits_;
    keys_.assign(size_t{1} << bits_, -1);
    slots_.assign(size_t{1} << bits_, -1);
  }
  // Place of the row, or of the free place where it belongs.
  int64_t find(int32_t row) const {
    const uint64_t mask = keys_.size() - 1;
    uint64_t at = static_cast<uint32_t>(static_cast<uint32_t>(row) * 2654435769u) >> (32 - bits_);
    while (keys_[at] != row && keys_[at] >= 0) at = (at + 1) & mask;
    return static_cast<int64_t>(at);
  }
  int32_t& key(int64_t at) { return keys_[at]; }
  int32_t& slot(int64_t at) { return slots_[at]; }

 private:
  int bits_ = 1;
  std::vector<int32_t> keys_, slots_;
};

void resolve_with_hash(const Case& c, int64_t run) {
  thread_local HashedRows table;
  thread_local std::vector<Entry> entries;
  thread_local std::vector<int32_t> order;
  thread_local std::vector<int16_t> hits, others;
  table.reset(c.rows_per_run * c.top_k);
  order.clear();
  hits.clear();
  others.clear();
  read_entries(c, run, entries, [&](int32_t host) {
    const int64_t at = table.find(host);
    if (table.key(at) >= 0) return;
    table.key(at) = host;
    order.push_back(host);
  });
  int32_t* owner = c.owner + c.states[run] * c.hot_size;
  int16_t* lru = c.lru + c.states[run] * c.hot_size;
  for (int64_t i = 0; i < c.hot_size; ++i) {
    const int16_t slot = lru[i];
    const int64_t at = owner[slot] >= 0 ? table.find(owner[slot]) : -1;
    const bool hit = at >= 0 && table.key(at) >= 0;
    if (hit) table.slot(at) = slot;
    (hit ? hits : others).push_back(slot);
  }
  int64_t misses = 0;
  for (const int32_t host : order) {
    int32_t& slot = table.slot(table.find(host));
    if (slot >= 0) continue;
    slot = others[misses];
    owner[slot] = host;
    const int64_t at = run * c.rows_per_run * c.top_k + misses++;
    c.refill_host[at] = host;
    c.refill_hot[at] = physical_row(c, run, slot);
  }
  lru = std::copy(others.begin() + misses, others.end(), lru);
  lru = std::copy(others.begin(), others.begin() + misses, lru);
  std::copy(hits.begin(), hits.end(), lru);
  write_answers(c, run, entries, misses, [&](const Entry& entry) {
    if (entry.resident >= 0) return entry.resident;
    return entry.host >= 0 ? physical_row(c, run, table.slot(table.find(entry.host))) : -1;
  });
}

// --- the limit: everything that must be read is read once, everything that must be written is written once
// ------------

// The sum counts as used, so that nothing that was read may be left out.
void keep(int64_t sum) { asm volatile("" ::"r"(sum) : "memory"); }

void stream_run(const Case& c, int64_t run) {
  thread_local std::vector<int16_t> row;
  const int64_t count = c.rows_per_run * c.top_k;
  std::copy_n(c.topk + run * count, count, c.attention + run * count);
  int64_t sum = 0;
  for (int64_t i = 0; i < c.source_cols; ++i) sum += c.source[run * c.source_cols + i];
  if (c.resident != nullptr) {
    for (int64_t i = 0; i < c.resident_cols; ++i) sum += c.resident[c.states[run] * c.resident_cols + i];
    keep(sum);
    return;  // resident entries touch no state
  }
  const int32_t* owner = c.owner + c.states[run] * c.hot_size;
  for (int64_t i = 0; i < c.hot_size; ++i) sum += owner[i];
  int16_t* lru = c.lru + c.states[run] * c.hot_size;
  row.assign(lru, lru + c.hot_size);
  std::copy(row.begin(), row.end(), lru);
  keep(sum);
}

template <class F>
void each_run(const Case& c, const F& f) {
  torch::stable::parallel_for(0, c.runs, 1, [&](int64_t begin, int64_t end) {
    for (int64_t run = begin; run < end; ++run) f(run);
  });
}

}  // namespace

extern "C" {

void* lists_new(const Case* c, int64_t states) {
  auto* lru = new ListLru{std::vector<std::list<Slot>>(states)};
  for (int64_t state = 0; state < states; ++state)
    for (int64_t i = 0; i < c->hot_size; ++i) {
      const int16_t slot = c->lru[state * c->hot_size + i];
      lru->states[state].push_back({slot, c->owner[state * c->hot_size + slot]});
    }
  return lru;
}

void lists_resolve(void* lru, const Case* c) {
  each_run(*c, [&](int64_t run) { resolve_with_lists(*static_cast<ListLru*>(lru), *c, run); });
}

// The lists as owner and LRU tables, to compare them.
void lists_read(const void* lru, const Case* c) {
  int64_t state = 0;
  for (const auto& slots : static_cast<const ListLru*>(lru)->states) {
    int64_t i = state * c->hot_size;
    for (const Slot& slot : slots) {
      c->lru[i++] = static_cast<int16_t>(slot.slot);
      c->owner[state * c->hot_size + slot.slot] = slot.owner;
    }
    ++state;
  }
}

void lists_delete(void* lru) { delete static_cast<ListLru*>(lru); }

void hash_resolve(const Case* c) {
  each_run(*c, [&](int64_t run) { resolve_with_hash(*c, run); });
}

void stream_resolve(const Case* c) {
  each_run(*c, [&](int64_t run) { stream_run(*c, run); });
}

}  // extern "C"
