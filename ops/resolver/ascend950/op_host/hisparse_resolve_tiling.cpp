// Sizes and strides from the attributes, checked against the memory that was passed, and the launch: one AIV
// per run, at most all of them.
#include <algorithm>
#include <cstdio>

#include "hisparse_resolve_host.h"
#include "hisparse_resolve_tiling.h"
#include "register/op_def_registry.h"
#include "resolver/simt/budget.h"
#include "tiling/platform/platform_ascendc.h"

namespace hisparse::ascend950 {

using namespace slots;
namespace {

class Operands {
 public:
  explicit Operands(gert::TilingContext* context) : context_(context) {}

  bool read(HisparseResolveTiling* to) {
    const auto* attrs = context_->GetAttrs();
    if (attrs == nullptr || to == nullptr) return refuse("attributes", "be there", 0);
    return copy(attrs->GetListInt(index(Attr::kSizes)), kNumSizes, "sizes", to->sizes) &&
           copy(attrs->GetListInt(index(Attr::kStrides)), kNumStrides, "strides", to->strides) && spans(*to);
  }

 private:
  template <class List>
  static bool copy(const List* from, size_t count, const char* name, int64_t* to) {
    if (from == nullptr || from->GetSize() != count)
      return refuse(name, "have one entry per slot", from ? from->GetSize() : 0);
    std::copy_n(from->GetData(), count, to);
    return true;
  }

  // The flat view must hold every element that sizes and strides lead to.
  bool spans(const HisparseResolveTiling& t) const {
    const auto size = [&t](Size s) { return t.sizes[index(s)]; };
    const int64_t rows = size(Size::kRows), top_k = size(Size::kTopK), hot = size(Size::kHotSize);
    const int64_t requests = size(Size::kNumRequests), states = size(Size::kNumStates);
    const int64_t block = size(Size::kBlockSize);
    if (rows < 0 || top_k < 0 || hot < 0 || requests < 0 || states < 0 || block < 1)
      return refuse("sizes", "not be negative", std::min({rows, top_k, hot, requests, states, block}));
    const int64_t hot_columns = (hot + block - 1) / block;
    return span(t, Input::kTopkIndices, rows, top_k) && span(t, Input::kRequestIds, rows, 1) &&
           span(t, Input::kRequestStateIndices, requests, 1) &&
           span(t, Input::kSourceBlockTable, requests, size(Size::kSourceColumns)) &&
           span(t, Input::kHotBlockTable, requests, hot_columns) && span(t, Input::kHotOwner, states, hot) &&
           span(t, Input::kLruSlots, states, hot) && span(t, Input::kAttentionIndices, rows, top_k) &&
           span(t, Input::kValidCounts, rows, 1) && span(t, Input::kRefillHostRows, rows, top_k) &&
           span(t, Input::kRefillHotRows, rows, top_k) && span(t, Input::kRefillCounts, rows, 1) &&
           span(t, Input::kResidentBlockTable, states, size(Size::kResidentColumns)) &&
           span(t, Input::kStableLengths, requests, 1) && span(t, Input::kPhysicalRows, rows, top_k) &&
           span(t, Input::kResolvedHostRows, rows, top_k) && span(t, Input::kMissMask, rows, top_k) &&
           span(t, Input::kResidentCounts, rows, 1) && span(t, Input::kStats, 2, 1);
  }

  bool span(const HisparseResolveTiling& t, Input input, int64_t rows, int64_t columns) const {
    if ((t.sizes[index(Size::kGiven)] & bit(input)) == 0 || rows == 0 || columns == 0) return true;
    const int64_t lanes = (t.sizes[index(Size::kWide)] & bit(input)) != 0 ? 2 : 1;
    const int64_t last = (rows - 1) * t.strides[index(input, Stride::kRow)] +
                         (columns - 1) * t.strides[index(input, Stride::kColumn)];
    const gert::StorageShape* shape = context_->GetRequiredInputShape(index(input));
    const int64_t held = shape == nullptr ? 0 : shape->GetStorageShape().GetShapeSize();
    if (last < 0 || (last + 1) * lanes > held) {
      std::fprintf(stderr, "resolve: input %zu must hold %lld elements, got %lld\n", index(input),
                   static_cast<long long>((last + 1) * lanes), static_cast<long long>(held));
      return false;
    }
    return true;
  }

  static bool refuse(const char* what, const char* rule, int64_t got) {
    std::fprintf(stderr, "resolve: %s must %s, got %lld\n", what, rule, static_cast<long long>(got));
    return false;
  }

  gert::TilingContext* context_;
};

}  // namespace

ge::graphStatus tiling(gert::TilingContext* context) {
  auto* data = context->GetTilingData<HisparseResolveTiling>();
  if (!Operands(context).read(data)) return ge::GRAPH_FAILED;
  const auto size = [data](Size s) { return data->sizes[index(s)]; };
  const int64_t bytes =
      simt::shared_bytes(size(Size::kRows), size(Size::kTopK), size(Size::kUnionLimit), size(Size::kHotSize));
  if (bytes > kUserUbBytes) {
    std::fprintf(stderr, "resolve: max_union_rows must leave at most %lld bytes of UB to use, got %lld\n",
                 static_cast<long long>(kUserUbBytes), static_cast<long long>(bytes));
    return ge::GRAPH_FAILED;
  }
  const int64_t cores = platform_ascendc::PlatformAscendC(context->GetPlatformInfo()).GetCoreNumAiv();
  context->SetBlockDim(static_cast<uint32_t>(std::clamp<int64_t>(size(Size::kRows), 1, cores)));
  context->SetDynUBufSize(static_cast<uint32_t>(bytes));
  return ge::GRAPH_SUCCESS;
}

}  // namespace hisparse::ascend950
