#include <torch/csrc/stable/library.h>

#include "common/parallel.h"
#include "transfer/copy_row_spans.h"
#include "transfer/slab_pairs.h"

namespace hisparse {
namespace {

constexpr const char* kOp = "copy_row_spans";

// Bytes to move, skipped rows included: an estimate for the number of threads, no further than it matters.
int64_t work(const std::vector<SlabPair>& pairs, const Ids& spans) {
  const int64_t enough = bytes_for_all_threads();
  int64_t bytes = 0;
  for (const SlabPair& pair : pairs)
    for (int64_t i = 0; i < spans.rows && bytes < enough; ++i)
      bytes += std::clamp<int64_t>(spans(i, 2), 0, pair.destination.rows()) * pair.source.row_bytes;
  return bytes;
}

void copy_row_spans_cpu(std::vector<Tensor> sources, std::vector<Tensor> destinations, const Tensor& spans) {
  std::vector<SlabPair> pairs = slab_pairs(kOp, sources, destinations, Paged::kAny);
  const Ids list = ids(kOp, "spans", spans, 2);
  check_size(kOp, "spans", spans, 1, "columns", 3);
  check_disjoint(kOp, pairs, "spans", list);
  for (SlabPair& pair : pairs) pair = {flattened(pair.source), flattened(pair.destination)};
  parallel_shares(pairs.size(), work(pairs, list), [&](int64_t layer, int64_t share, int64_t shares) {
    copy_row_spans(pairs[layer].source, pairs[layer].destination, list, share, shares);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(hisparse, CPU, m) { m.impl("copy_row_spans", TORCH_BOX(&copy_row_spans_cpu)); }

}  // namespace hisparse
