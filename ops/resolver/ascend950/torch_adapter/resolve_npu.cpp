// torch.ops.hisparse_ascend950.resolve: hands the operands of hisparse::resolve, checked by its Python
// launcher, to ACLNN. Every tensor goes as the flat view of the memory it spans, so that nothing is made
// contiguous, which would be a copy that updates in place do not come back from.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <optional>
#include <vector>

#include "op_plugin/utils/op_api_common.h"
#include "resolver/simt/slots.h"

#ifndef HISPARSE_DEVICE_KEY
#define HISPARSE_DEVICE_KEY PrivateUse1
#endif

namespace hisparse::ascend950 {

using namespace slots;
namespace {

using OptionalTensor = std::optional<at::Tensor>;

class Operands {
 public:
  Operands(at::IntArrayRef sizes, const at::Device& device)
      : sizes_(sizes.vec()), strides_(kNumStrides, 0), device_(device) {
    TORCH_CHECK(sizes_.size() == kNumSizes, "resolve: sizes must have ", kNumSizes, " entries, got ",
                sizes_.size());
    sizes_[index(Size::kGiven)] = 0;
    sizes_[index(Size::kWide)] = 0;
  }

  at::Tensor ids(Input input, const char* name, const at::Tensor& t) {
    const bool wide = t.scalar_type() == at::kLong;
    TORCH_CHECK(wide || t.scalar_type() == at::kInt, "resolve: ", name, " must be int32 or int64, got ",
                t.scalar_type());
    if (wide) sizes_[index(Size::kWide)] |= bit(input);
    const at::Tensor lanes = flat(input, name, t);
    return wide ? lanes.view(at::kInt) : lanes;
  }

  at::Tensor table(Input input, const char* name, const at::Tensor& t, at::ScalarType type = at::kInt) {
    TORCH_CHECK(t.scalar_type() == type, "resolve: ", name, " must be ", type, ", got ", t.scalar_type());
    return flat(input, name, t);
  }

  OptionalTensor optional_table(Input input, const char* name, const OptionalTensor& t) {
    return t ? OptionalTensor(table(input, name, *t)) : std::nullopt;
  }

  OptionalTensor optional_ids(Input input, const char* name, const OptionalTensor& t) {
    return t ? OptionalTensor(ids(input, name, *t)) : std::nullopt;
  }

  // An optional output that was left out is another tensor of its type, which the kernel does not touch.
  at::Tensor output(Input input, const char* name, const OptionalTensor& t, const at::Tensor& other) {
    return t ? table(input, name, *t) : other;
  }

  at::IntArrayRef sizes() const { return sizes_; }
  at::IntArrayRef strides() const { return strides_; }

 private:
  at::Tensor flat(Input input, const char* name, const at::Tensor& t) {
    TORCH_CHECK(t.device() == device_, "resolve: ", name, " must be on ", device_, ", got ", t.device());
    TORCH_CHECK(t.dim() == 1 || t.dim() == 2, "resolve: ", name, " must be 1-D or 2-D, got ", t.dim(), "-D");
    sizes_[index(Size::kGiven)] |= bit(input);
    int64_t span = t.numel() > 0 ? 1 : 0;
    for (int64_t d = 0; d < t.dim(); ++d) {
      strides_[index(input, d == 0 ? Stride::kRow : Stride::kColumn)] = t.stride(d);
      if (span > 0) span += (t.size(d) - 1) * t.stride(d);
    }
    return t.as_strided({span}, {1});
  }

  std::vector<int64_t> sizes_;
  std::vector<int64_t> strides_;
  at::Device device_;
};

void resolve(const at::Tensor& topk_indices, const at::Tensor& request_ids,
             const at::Tensor& request_state_indices, const OptionalTensor& source_block_table,
             const at::Tensor& hot_block_table, at::Tensor& hot_owner, at::Tensor& lru_slots,
             at::Tensor& attention_indices, at::Tensor& valid_counts, at::Tensor& refill_host_rows,
             at::Tensor& refill_hot_rows, at::Tensor& refill_counts,
             const OptionalTensor& resident_block_table, const OptionalTensor& stable_lengths,
             const OptionalTensor& physical_rows, const OptionalTensor& resolved_host_rows,
             const OptionalTensor& miss_mask, const OptionalTensor& resident_counts,
             const OptionalTensor& stats, at::IntArrayRef sizes) {
  Operands operands(sizes, topk_indices.device());
  const at::Tensor topk = operands.ids(Input::kTopkIndices, "topk_indices", topk_indices);
  const at::Tensor requests = operands.ids(Input::kRequestIds, "request_ids", request_ids);
  const at::Tensor states =
      operands.ids(Input::kRequestStateIndices, "request_state_indices", request_state_indices);
  const OptionalTensor source =
      operands.optional_table(Input::kSourceBlockTable, "source_block_table", source_block_table);
  const at::Tensor hot_blocks = operands.table(Input::kHotBlockTable, "hot_block_table", hot_block_table);
  const at::Tensor owner = operands.table(Input::kHotOwner, "hot_owner", hot_owner);
  const at::Tensor lru = operands.table(Input::kLruSlots, "lru_slots", lru_slots, at::kShort);
  const at::Tensor attention =
      operands.table(Input::kAttentionIndices, "attention_indices", attention_indices);
  const at::Tensor valid = operands.table(Input::kValidCounts, "valid_counts", valid_counts);
  const at::Tensor plan_host = operands.table(Input::kRefillHostRows, "refill_host_rows", refill_host_rows);
  const at::Tensor plan_hot = operands.table(Input::kRefillHotRows, "refill_hot_rows", refill_hot_rows);
  const at::Tensor refills = operands.table(Input::kRefillCounts, "refill_counts", refill_counts);
  const OptionalTensor resident =
      operands.optional_table(Input::kResidentBlockTable, "resident_block_table", resident_block_table);
  const OptionalTensor stable =
      operands.optional_ids(Input::kStableLengths, "stable_lengths", stable_lengths);
  const at::Tensor physical =
      operands.output(Input::kPhysicalRows, "physical_rows", physical_rows, attention);
  const at::Tensor host =
      operands.output(Input::kResolvedHostRows, "resolved_host_rows", resolved_host_rows, attention);
  const at::Tensor mask = operands.output(Input::kMissMask, "miss_mask", miss_mask, attention);
  const at::Tensor residents =
      operands.output(Input::kResidentCounts, "resident_counts", resident_counts, valid);
  const at::Tensor totals = stats ? operands.ids(Input::kStats, "stats", *stats) : attention;
  const at::IntArrayRef all_sizes = operands.sizes();
  const at::IntArrayRef strides = operands.strides();
  EXEC_NPU_CMD(aclnnHisparseResolve, topk, requests, states, source, hot_blocks, owner, lru, attention, valid,
               plan_host, plan_hot, refills, resident, stable, physical, host, mask, residents, totals,
               all_sizes, strides);
}

}  // namespace

TORCH_LIBRARY(hisparse_ascend950, m) {
  m.def(
      "resolve(Tensor topk_indices, Tensor request_ids, Tensor request_state_indices,"
      " Tensor? source_block_table, Tensor hot_block_table, Tensor(a!) hot_owner, Tensor(b!) lru_slots,"
      " Tensor(c!) attention_indices, Tensor(d!) valid_counts, Tensor(e!) refill_host_rows,"
      " Tensor(f!) refill_hot_rows, Tensor(g!) refill_counts, Tensor? resident_block_table,"
      " Tensor? stable_lengths, Tensor(h!)? physical_rows, Tensor(i!)? resolved_host_rows,"
      " Tensor(j!)? miss_mask, Tensor(k!)? resident_counts, Tensor(l!)? stats, int[] sizes) -> ()");
}

TORCH_LIBRARY_IMPL(hisparse_ascend950, HISPARSE_DEVICE_KEY, m) { m.impl("resolve", &resolve); }

}  // namespace hisparse::ascend950
