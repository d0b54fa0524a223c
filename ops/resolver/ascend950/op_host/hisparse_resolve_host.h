// What op_host registers for resolve.
#pragma once

#include "register/op_impl_registry.h"

namespace hisparse::ascend950 {

ge::graphStatus tiling(gert::TilingContext* context);
ge::graphStatus infer_shape(gert::InferShapeContext* context);
ge::graphStatus infer_data_type(gert::InferDataTypeContext* context);

}  // namespace hisparse::ascend950
