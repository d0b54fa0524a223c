#include <torch/csrc/stable/library.h>

#include <optional>

#include "common/check.h"
#include "common/parallel.h"
#include "transfer/publish_indexer_pages.h"

namespace hisparse {
namespace {

constexpr const char* kOp = "publish_indexer_pages";

void publish_indexer_pages_cpu(const Tensor& source, const Tensor& source_blocks,
                               const Tensor& logical_blocks, const Tensor& shared,
                               std::optional<Tensor> row_counts) {
  check_dim(kOp, "source", source, 3);
  const Slab from = slab(kOp, "source", source, Access::kRead);
  const Ids from_blocks = ids(kOp, "source_blocks", source_blocks, 1);
  const Ids to_blocks = ids(kOp, "logical_blocks", logical_blocks, 1);
  check_size(kOp, "logical_blocks", logical_blocks, 0, "length", from_blocks.rows);
  check_dim(kOp, "slab", shared, 3);
  const Slab to = slab(kOp, "slab", shared, Access::kWrite);
  check_row_bytes(kOp, "slab", to, "source", from);
  check_size(kOp, "slab", shared, 1, "block_size", from.block_rows);
  Ids counts;
  if (row_counts) {
    counts = ids(kOp, "row_counts", *row_counts, 1);
    check_size(kOp, "row_counts", *row_counts, 0, "length", from_blocks.rows);
  }
  check_disjoint(kOp, "slab", to, "source", from);
  check_disjoint(kOp, "slab", to, "source_blocks", bytes_of(from_blocks));
  check_disjoint(kOp, "slab", to, "logical_blocks", bytes_of(to_blocks));
  if (row_counts) check_disjoint(kOp, "slab", to, "row_counts", bytes_of(counts));
  const int64_t bytes = to_blocks.rows * to.block_rows * to.row_bytes;
  parallel_parts(bytes, [&](int64_t part, int64_t parts) {
    publish_indexer_pages(from, from_blocks, to_blocks, to, row_counts ? &counts : nullptr, part, parts);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(hisparse, CPU, m) {
  m.impl("publish_indexer_pages", TORCH_BOX(&publish_indexer_pages_cpu));
}

}  // namespace hisparse
