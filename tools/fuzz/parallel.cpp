// The parallel paths under ThreadSanitizer: parts of one destination in threads of their own, and runs of
// different states of one table with one shared pair of statistics. Every round is compared with one thread.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "gather/gather_compact.h"
#include "invalidate/invalidate_written.h"
#include "resolver/resolve.h"
#include "transfer/copy_row_spans.h"
#include "transfer/scatter_rows.h"

namespace {

using namespace hisparse;

constexpr int64_t kThreads = 4;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "property broken: %s\n", what);
  std::abort();
}

template <class Work>
void together(const Work& work) {
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < kThreads; ++i) threads.emplace_back([&work, i] { work(i); });
  for (std::thread& thread : threads) thread.join();
}

template <class T>
std::vector<T> numbers(std::mt19937& random, int64_t count, int64_t low, int64_t high) {
  std::uniform_int_distribution<int64_t> pick(low, high);
  std::vector<T> out(static_cast<size_t>(count));
  for (T& v : out) v = static_cast<T>(pick(random));
  return out;
}

void movers(std::mt19937& random) {
  constexpr int64_t kRows = 60, kBytes = 24, kList = 200;
  const auto source = numbers<char>(random, kRows * kBytes, -128, 127);
  const auto slots = numbers<int64_t>(random, kList, -2, kRows + 2);
  const auto spans = numbers<int64_t>(random, kList * 3, -2, kRows);
  const auto rows = numbers<char>(random, kList * kBytes, -128, 127);
  const std::vector<int64_t> counts(kList / 4, 4);
  const Slab host{const_cast<char*>(source.data()), 1, kRows, 0, kBytes, kBytes};
  const Slab tokens{const_cast<char*>(rows.data()), 1, kList, 0, kBytes, kBytes};
  const Ids list{slots.data(), kList, 1, 1, 1, true, true};
  const Ids triples{spans.data(), kList, 3, 3, 1, true, true};
  const Ids grid{slots.data(), kList / 4, 4, 4, 1, true, true};
  const Ids planned{counts.data(), kList / 4, 1, 1, 1, true, true};
  const auto run = [&](char* bytes, int64_t op, int64_t part, int64_t parts) {
    const Slab to{bytes, 1, kRows, 0, kBytes, kBytes};
    if (op == 0) scatter_rows(&tokens, &to, 1, list, part, parts);
    if (op == 1) copy_row_spans(host, to, triples, part, parts);
    if (op == 2) gather_compact({host, to, grid, grid}, planned, part, parts);
  };
  for (int64_t op = 0; op < 3; ++op) {
    std::vector<char> alone(kRows * kBytes), shared(kRows * kBytes);
    run(alone.data(), op, 0, 1);
    together([&](int64_t part) { run(shared.data(), op, part, kThreads); });
    require(alone == shared, "threads write what one does");
  }
}

void states(std::mt19937& random) {
  constexpr int64_t kTopK = 16, kHot = 40, kBlock = 4;
  const auto topk = numbers<int32_t>(random, kThreads * kTopK, -1, 90);
  auto blocks = numbers<int32_t>(random, kThreads * kHot / kBlock, 1, 60);
  struct Tables {
    std::vector<int32_t> owner, grids, counts;
    std::vector<int16_t> lru;
    std::vector<int64_t> stats;
  };
  Tables start{numbers<int32_t>(random, kThreads * kHot, -1, 90), std::vector<int32_t>(3 * kThreads * kTopK),
               std::vector<int32_t>(2 * kThreads), std::vector<int16_t>(kThreads * kHot),
               std::vector<int64_t>(2)};
  for (int64_t i = 0; i < kThreads * kHot; ++i) start.lru[i] = static_cast<int16_t>(i % kHot);
  const auto resolve = [&](Tables& t, int64_t state) {
    ResolveArgs args;
    args.top_k = kTopK;
    args.hot_size = args.union_limit = kHot;
    args.host_rows = 85;
    args.num_blocks = 58;
    args.attention_block_stride = kBlock;
    args.page = args.source_page = args.resident_page = PageSize(kBlock);
    args.isa = current_isa();
    args.topk_indices = {topk.data(), kThreads, kTopK, kTopK, 1, false, true};
    args.hot_blocks = {blocks.data(), kThreads, kHot / kBlock, kHot / kBlock, true};
    args.hot_owner = {t.owner.data(), kThreads, kHot, kHot, true};
    args.lru_slots = {t.lru.data(), kThreads, kHot, kHot, true};
    int32_t* grid = t.grids.data();
    for (auto* out : {&args.attention_indices, &args.refill_host_rows, &args.refill_hot_rows}) {
      *out = {grid, kThreads, kTopK, kTopK, true};
      grid += kThreads * kTopK;
    }
    args.valid_counts = {t.counts.data(), kThreads, 1, true};
    args.refill_counts = {t.counts.data() + kThreads, kThreads, 1, true};
    args.stats = {t.stats.data(), 2, 1, true};
    RunResolver().resolve(args, {state, 1, state, state});
  };
  Tables alone = start, shared = start;
  for (int64_t state = 0; state < kThreads; ++state) resolve(alone, state);
  together([&](int64_t state) { resolve(shared, state); });
  require(alone.owner == shared.owner && alone.lru == shared.lru && alone.grids == shared.grids &&
              alone.counts == shared.counts && alone.stats == shared.stats,
          "threads on states of their own do what one does");
}

void owners(std::mt19937& random) {
  constexpr int64_t kStates = 24, kHot = 50, kTokens = 100;
  const auto start = numbers<int32_t>(random, kStates * kHot, -1, 300);
  const auto slots = numbers<int64_t>(random, kTokens, -1, 300);
  const auto requests = numbers<int64_t>(random, kTokens, -1, kStates);
  const auto rows = numbers<int64_t>(random, kStates, -1, kStates);
  const auto drop = [&](std::vector<int32_t>& owner, bool threads) {
    OwnerDrop plan;
    plan.owners.push_back({owner.data(), kStates, kHot, kHot, true});
    plan_written(plan, {rows.data(), kStates, 1, 1, 1, true, true},
                 {requests.data(), kTokens, 1, 1, 1, true, true},
                 {slots.data(), kTokens, 1, 1, 1, true, true});
    const int64_t pairs = plan.pairs();
    if (!threads) return plan.run(current_isa(), 0, pairs);
    together([&](int64_t i) { plan.run(current_isa(), pairs * i / kThreads, pairs * (i + 1) / kThreads); });
  };
  std::vector<int32_t> alone = start, shared = start;
  drop(alone, false);
  drop(shared, true);
  require(alone == shared, "threads forget what one does");
}

}  // namespace

int main(int argc, char** argv) {
  const long rounds = argc > 1 ? std::atol(argv[1]) : 200;
  std::mt19937 random(1);
  for (long round = 0; round < rounds; ++round) {
    movers(random);
    states(random);
    owners(random);
  }
  std::printf("%ld executions\n", 5 * rounds);
}
