// Fuzzes the torch-free cores. The input's bytes choose an op, its sizes and every value of its tables, wild
// ones among them; each array has exactly its size, so that AddressSanitizer sees one element too far.
//
// Beyond not crashing: every instruction set and every number of parts gives the same bytes as the scalar,
// undivided form, and an LRU row that was a permutation stays one.
//
// With libFuzzer (clang -fsanitize=fuzzer) it explores; with -DHISPARSE_STANDALONE it takes random inputs.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "common/isa.h"
#include "gather/gather_compact.h"
#include "gather/gather_plan.h"
#include "invalidate/invalidate_recycled.h"
#include "invalidate/invalidate_written.h"
#include "resolver/resolve.h"
#include "transfer/copy_pages.h"
#include "transfer/copy_resident_rows.h"
#include "transfer/copy_row_spans.h"
#include "transfer/pad_slots.h"
#include "transfer/publish_indexer_pages.h"
#include "transfer/scatter_rows.h"

namespace hisparse {
namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "property broken: %s\n", what);
  std::abort();
}

// The fuzzer's bytes as numbers; zeros once they are used up.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  uint8_t byte() { return at_ < size_ ? data_[at_++] : 0; }
  int64_t below(int64_t n) { return n <= 0 ? 0 : byte() % n; }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }

  // Mostly near [0, limit], sometimes anything.
  int64_t value(int64_t limit) {
    static constexpr int64_t kWild[] = {-1,        -2,        INT32_MAX, INT32_MIN, INT64_MAX,
                                        INT64_MIN, INT16_MIN, INT16_MAX, 1ll << 32, (1ll << 32) + 1,
                                        1ll << 31, 1ll << 62};
    const uint8_t kind = byte();
    if (kind < 32) return kWild[kind % 12];
    return below(std::min<int64_t>(limit + 2, 255)) - (kind < 64);
  }

 private:
  const uint8_t* data_;
  size_t size_, at_ = 0;
};

template <class T>
std::vector<T> values(Input& in, int64_t count, int64_t limit) {
  std::vector<T> out(static_cast<size_t>(count));
  out.shrink_to_fit();
  for (T& v : out) {
    const int64_t value = in.value(limit);
    v = static_cast<T>(
        std::clamp<int64_t>(value, std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
  }
  return out;
}

template <class T>
Ids ids(const std::vector<T>& list, int64_t rows, int64_t cols = 1) {
  return {list.data(), rows, cols, cols, 1, sizeof(T) == 8, true};
}

template <class T>
Table<T> table(std::vector<std::remove_const_t<T>>& list, int64_t rows, int64_t cols) {
  return {list.data(), rows, cols, cols, true};
}

std::vector<Isa> isas() {
  std::vector<Isa> out;
  for (Isa isa : kAllIsas)
    if (isa_supported(isa)) out.push_back(isa);
  return out;
}

struct Cache {
  std::vector<char> bytes;
  Slab slab;
};

// Pages with a gap between them, exactly as long as the last page needs.
Cache cache(Input& in, int64_t blocks, int64_t block_rows, int64_t row_bytes) {
  Cache c;
  const int64_t row_stride = row_bytes + in.below(3);
  const int64_t page = (block_rows - 1) * row_stride + row_bytes;
  const int64_t stride = std::max<int64_t>(page, block_rows * row_stride) + in.below(4);
  c.bytes.resize(blocks > 0 ? static_cast<size_t>((blocks - 1) * stride + page) : 0);
  c.bytes.shrink_to_fit();
  for (size_t i = 0; i < c.bytes.size(); ++i) c.bytes[i] = static_cast<char>(i * 31 + 7);
  c.slab = {c.bytes.data(), blocks, block_rows, stride, row_stride, row_bytes};
  return c;
}

Slab over(const Slab& slab, std::vector<char>& bytes) {
  Slab s = slab;
  s.base = bytes.data();
  return s;
}

// run(destination, part, parts) by any number of parts equals the undivided run.
template <class Run>
void same_by_parts(const Cache& destination, int64_t parts, const Run& run) {
  std::vector<char> whole = destination.bytes, divided = destination.bytes;
  run(over(destination.slab, whole), int64_t{0}, int64_t{1});
  for (int64_t part = 0; part < parts; ++part) run(over(destination.slab, divided), part, parts);
  require(whole == divided, "parts write what one does");
}

bool is_permutation(const int16_t* lru, int64_t size) {
  std::vector<bool> seen(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) {
    if (lru[i] < 0 || lru[i] >= size || seen[static_cast<size_t>(lru[i])]) return false;
    seen[static_cast<size_t>(lru[i])] = true;
  }
  return true;
}

struct Resolved {
  std::vector<int32_t> owner, attention, host, hot, physical, resolved, mask, valid, counts, resident;
  std::vector<int16_t> lru;
  std::vector<int64_t> stats;
  bool operator==(const Resolved& o) const {
    return owner == o.owner && attention == o.attention && host == o.host && hot == o.hot &&
           physical == o.physical && resolved == o.resolved && mask == o.mask && valid == o.valid &&
           counts == o.counts && resident == o.resident && lru == o.lru && stats == o.stats;
  }
};

void fuzz_resolve(Input& in) {
  const int64_t rows = in.between(1, 4), top_k = in.between(1, 20);
  const int64_t hot_size = top_k + in.below(60), requests = in.between(1, 2), states = in.between(1, 3);
  const int64_t block = in.between(1, 5), source_block = in.between(1, 5), resident_block = in.between(1, 5);
  const int64_t source_cols = in.below(6), resident_cols = in.below(6);
  const int64_t hot_cols = (hot_size + block - 1) / block;
  const bool has_source = in.below(4) != 0, wide = in.below(2) != 0, corrupt = in.below(3) == 0;
  ResolveArgs args;
  args.top_k = top_k;
  args.hot_size = hot_size;
  args.host_rows = in.below(2) ? in.below(40) : 40000;
  args.num_blocks = in.between(0, 30);
  args.union_limit = top_k + in.below(hot_size - top_k + 1);
  args.attention_block_stride = block + in.below(9);
  args.page = PageSize(block);
  args.source_page = PageSize(source_block);
  args.resident_page = PageSize(resident_block);
  args.prefix = in.below(2) != 0;
  const std::vector<int64_t> topk_wide = values<int64_t>(in, rows * top_k, 30);
  std::vector<int32_t> topk;
  for (int64_t v : topk_wide)
    topk.push_back(static_cast<int32_t>(std::clamp<int64_t>(v, INT32_MIN, INT32_MAX)));
  topk.shrink_to_fit();
  args.topk_indices = wide ? ids(topk_wide, rows, top_k) : ids(topk, rows, top_k);
  std::vector<int32_t> source = values<int32_t>(in, requests * source_cols, 12);
  std::vector<int32_t> hot_blocks = values<int32_t>(in, requests * hot_cols, 30);
  std::vector<int32_t> resident = values<int32_t>(in, states * resident_cols, 12);
  const std::vector<int64_t> stable = values<int64_t>(in, requests, 30);
  if (has_source) {
    args.source = table<const int32_t>(source, requests, source_cols);
    if (in.below(2)) args.resident = table<const int32_t>(resident, states, resident_cols);
    if (in.below(2)) args.stable_lengths = ids(stable, requests);
  }
  args.hot_blocks = table<const int32_t>(hot_blocks, requests, hot_cols);

  Resolved start;
  start.owner = values<int32_t>(in, states * hot_size, 40);
  start.lru.resize(static_cast<size_t>(states * hot_size));
  for (int64_t i = 0; i < states * hot_size; ++i) start.lru[i] = static_cast<int16_t>(i % hot_size);
  for (int64_t i = 0; i < states * hot_size; ++i)
    std::swap(start.lru[i], start.lru[i / hot_size * hot_size + in.below(std::min<int64_t>(hot_size, 255))]);
  if (corrupt)
    for (int64_t n = in.between(1, 4); n > 0; --n)
      start.lru[in.below(std::min<int64_t>(states * hot_size, 255))] =
          static_cast<int16_t>(in.value(hot_size));
  for (auto* grid :
       {&start.attention, &start.host, &start.hot, &start.physical, &start.resolved, &start.mask})
    grid->assign(static_cast<size_t>(rows * top_k), 123456);
  for (auto* list : {&start.valid, &start.counts, &start.resident})
    list->assign(static_cast<size_t>(rows), 123456);
  start.stats.assign(2, 0);
  const bool optional = in.below(2) != 0;
  const ResolveRun run{0, rows, in.below(requests), in.below(states)};
  const int64_t at = run.state * hot_size;
  const bool permutation = is_permutation(start.lru.data() + at, hot_size);

  Resolved scalar;
  for (Isa isa : isas()) {
    Resolved r = start;
    args.isa = isa;
    args.hot_owner = table<int32_t>(r.owner, states, hot_size);
    args.lru_slots = table<int16_t>(r.lru, states, hot_size);
    args.attention_indices = table<int32_t>(r.attention, rows, top_k);
    args.refill_host_rows = table<int32_t>(r.host, rows, top_k);
    args.refill_hot_rows = table<int32_t>(r.hot, rows, top_k);
    args.valid_counts = {r.valid.data(), rows, 1, true};
    args.refill_counts = {r.counts.data(), rows, 1, true};
    if (optional) {
      args.physical_rows = table<int32_t>(r.physical, rows, top_k);
      args.resolved_host_rows = table<int32_t>(r.resolved, rows, top_k);
      args.miss_mask = table<int32_t>(r.mask, rows, top_k);
      args.resident_counts = {r.resident.data(), rows, 1, true};
      args.stats = {r.stats.data(), 2, 1, true};
    }
    RunResolver resolver;
    if (rows * top_k > args.union_limit && resolver.exceeds_limit(args, run)) {
      require(r == start, "a refused run writes nothing");
      return;
    }
    resolver.resolve(args, run);
    if (permutation) require(is_permutation(r.lru.data() + at, hot_size), "the LRU stays a permutation");
    for (int64_t i = 0; i < states * hot_size; ++i)
      if (i < at || i >= at + hot_size)
        require(r.lru[i] == start.lru[i] && r.owner[i] == start.owner[i], "other states are untouched");
    if (isa == Isa::kScalar) scalar = r;
    else require(r == scalar, "every instruction set gives the scalar result");
  }
}

void fuzz_gather(Input& in, bool by_mask) {
  const int64_t rows = in.between(0, 5), top_k = in.between(1, 20), row_bytes = in.between(1, 40);
  const Cache host = cache(in, in.between(0, 4), in.between(1, 6), row_bytes);
  const Cache hot = cache(in, in.between(0, 4), in.between(1, 6), row_bytes);
  const auto host_rows = values<int64_t>(in, rows * top_k, 24);
  const auto hot_rows = values<int32_t>(in, rows * top_k, 24);
  const auto counts = values<int64_t>(in, rows, top_k);
  const auto mask = values<int32_t>(in, rows * top_k, 1);
  const Ids from = ids(host_rows, rows, top_k), to = ids(hot_rows, rows, top_k);
  same_by_parts(hot, in.between(1, 4), [&](const Slab& target, int64_t part, int64_t parts) {
    const Refill refill{host.slab, target, from, to};
    if (by_mask)
      gather_plan({refill, ids(mask, rows, top_k), rows > 0 ? ids(counts, rows) : Ids{}}, part, parts);
    else gather_compact(refill, ids(counts, rows), part, parts);
  });
}

void fuzz_movers(Input& in, int64_t op) {
  const int64_t n = in.between(0, 8), row_bytes = in.between(1, 40), block_rows = in.between(1, 6);
  const Cache source = cache(in, in.between(1, 5), block_rows, row_bytes);
  const Cache target = cache(in, in.between(0, 5), op == 0 ? in.between(1, 6) : block_rows, row_bytes);
  const auto list = values<int64_t>(in, n * 3, 30);
  const auto other = values<int32_t>(in, n, 6);
  const auto counts = values<int64_t>(in, n, block_rows);
  const Ids rows_counted = ids(counts, n);
  same_by_parts(target, in.between(1, 4), [&](const Slab& to, int64_t part, int64_t parts) {
    if (op == 0) copy_row_spans(flattened(source.slab), flattened(to), ids(list, n, 3), part, parts);
    if (op == 1) copy_pages(source.slab, to, Ids{list.data(), n, 2, 3, 1, true, true}, part, parts);
    if (op == 2)
      publish_indexer_pages(source.slab, ids(other, n), Ids{list.data(), n, 1, 3, 1, true, true}, to,
                            n % 2 ? &rows_counted : nullptr, part, parts);
  });
}

void fuzz_rows(Input& in) {
  const int64_t n = in.between(0, 12), row_bytes = in.between(1, 40);
  const Cache slab = cache(in, in.between(1, 5), in.between(1, 6), row_bytes);
  const Cache flat = cache(in, 1, std::max<int64_t>(n, 1), row_bytes);
  const auto slots = values<int64_t>(in, n, 30);
  same_by_parts(slab, in.between(1, 4), [&](const Slab& to, int64_t part, int64_t parts) {
    scatter_rows(&flat.slab, &to, 1, ids(slots, n), part, parts);
  });
  std::vector<char> staging = flat.bytes;
  copy_resident_rows(slab.slab, ids(slots, n), over(flat.slab, staging), in.below(2) != 0, 0, n);
  std::vector<int32_t> narrow(static_cast<size_t>(n));
  pad_slots(slots.data(), 1, in.value(n), narrow.data(), 1, n);
}

void fuzz_invalidate(Input& in, bool written) {
  const int64_t states = in.between(1, 3), hot_size = in.between(0, 70), n = in.between(0, 40);
  const std::vector<int32_t> start = values<int32_t>(in, states * hot_size, 200);
  const auto slots = values<int64_t>(in, n, 200);
  const auto requests = values<int32_t>(in, n, 4);
  const auto request_states = values<int64_t>(in, 4, states);
  std::vector<int32_t> scalar;
  for (Isa isa : isas()) {
    std::vector<int32_t> owner = start;
    OwnerDrop drop;
    drop.owners.push_back(table<int32_t>(owner, states, hot_size));
    if (written) plan_written(drop, ids(request_states, 4), ids(requests, n), ids(slots, n));
    else plan_recycled(drop, ids(request_states, 4), ids(slots, n));
    drop.run(isa, 0, drop.pairs());
    for (size_t i = 0; i < owner.size(); ++i)
      require(owner[i] == start[i] ||
                  (owner[i] == -1 && std::find(slots.begin(), slots.end(), start[i]) != slots.end()),
              "only owners of a listed row become -1");
    if (isa == Isa::kScalar) scalar = owner;
    else require(owner == scalar, "every instruction set gives the scalar result");
  }
}

}  // namespace

void fuzz_one(const uint8_t* data, size_t size) {
  Input in(data, size);
  switch (in.below(12)) {
    case 0: return fuzz_gather(in, false);
    case 1: return fuzz_gather(in, true);
    case 2: return fuzz_movers(in, 0);
    case 3: return fuzz_movers(in, 1);
    case 4: return fuzz_movers(in, 2);
    case 5: return fuzz_rows(in);
    case 6: return fuzz_invalidate(in, true);
    case 7: return fuzz_invalidate(in, false);
    default: return fuzz_resolve(in);
  }
}

}  // namespace hisparse

#if defined(HISPARSE_STANDALONE)
// cores RUNS [SEED]: where there is no libFuzzer.
int main(int argc, char** argv) {
  const long runs = argc > 1 ? std::atol(argv[1]) : 100000;
  std::mt19937 random(argc > 2 ? static_cast<unsigned>(std::atol(argv[2])) : 1u);
  std::vector<uint8_t> bytes;
  for (long run = 0; run < runs; ++run) {
    bytes.resize(random() % 2048);
    for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
    hisparse::fuzz_one(bytes.data(), bytes.size());
  }
  std::printf("%ld executions\n", runs);
}
#else
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hisparse::fuzz_one(data, size);
  return 0;
}
#endif
