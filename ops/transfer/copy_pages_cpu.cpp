#include <torch/csrc/stable/library.h>

#include "common/parallel.h"
#include "transfer/copy_pages.h"
#include "transfer/slab_pairs.h"

namespace hisparse {
namespace {

constexpr const char* kOp = "copy_pages";

void copy_pages_cpu(std::vector<Tensor> sources, std::vector<Tensor> destinations, const Tensor& page_pairs) {
  const std::vector<SlabPair> pairs = slab_pairs(kOp, sources, destinations, Paged::kOnly);
  const Ids list = ids(kOp, "page_pairs", page_pairs, 2);
  check_size(kOp, "page_pairs", page_pairs, 1, "columns", 2);
  check_disjoint(kOp, pairs, "page_pairs", list);
  int64_t bytes = 0;
  for (const SlabPair& pair : pairs) bytes += list.rows * pair.source.block_rows * pair.source.row_bytes;
  parallel_shares(pairs.size(), bytes, [&](int64_t layer, int64_t share, int64_t shares) {
    copy_pages(pairs[layer].source, pairs[layer].destination, list, share, shares);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(hisparse, CPU, m) { m.impl("copy_pages", TORCH_BOX(&copy_pages_cpu)); }

}  // namespace hisparse
