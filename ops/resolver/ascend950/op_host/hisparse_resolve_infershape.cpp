// An update in place has the shape and the data type of what it updates.
#include "hisparse_resolve_host.h"
#include "resolver/simt/slots.h"

namespace hisparse::ascend950 {

using namespace slots;

ge::graphStatus infer_shape(gert::InferShapeContext* context) {
  for (size_t output = 0; output < index(Output::kCount); ++output) {
    const gert::Shape* from = context->GetRequiredInputShape(index(updated(static_cast<Output>(output))));
    gert::Shape* to = context->GetOutputShape(output);
    if (from == nullptr || to == nullptr) return ge::GRAPH_FAILED;
    *to = *from;
  }
  return ge::GRAPH_SUCCESS;
}

ge::graphStatus infer_data_type(gert::InferDataTypeContext* context) {
  for (size_t output = 0; output < index(Output::kCount); ++output) {
    const size_t input = index(updated(static_cast<Output>(output)));
    const ge::DataType type = context->GetRequiredInputDataType(input);
    if (context->SetOutputDataType(output, type) != ge::GRAPH_SUCCESS) return ge::GRAPH_FAILED;
  }
  return ge::GRAPH_SUCCESS;
}

}  // namespace hisparse::ascend950
