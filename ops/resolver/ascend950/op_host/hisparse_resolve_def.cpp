// The op as CANN knows it: operands in the order of slots.h.
#include <vector>

#include "hisparse_resolve_host.h"
#include "register/op_def_registry.h"

namespace ops {

class HisparseResolve : public OpDef {
 public:
  explicit HisparseResolve(const char* name) : OpDef(name) {
    read("topk_indices", REQUIRED);
    read("request_ids", REQUIRED);
    read("request_state_indices", REQUIRED);
    read("source_block_table", OPTIONAL);
    read("hot_block_table", REQUIRED);
    update("hot_owner", ge::DT_INT32);
    update("lru_slots", ge::DT_INT16);
    update("attention_indices", ge::DT_INT32);
    update("valid_counts", ge::DT_INT32);
    update("refill_host_rows", ge::DT_INT32);
    update("refill_hot_rows", ge::DT_INT32);
    update("refill_counts", ge::DT_INT32);
    read("resident_block_table", OPTIONAL);
    read("stable_lengths", OPTIONAL);
    update("physical_rows", ge::DT_INT32);
    update("resolved_host_rows", ge::DT_INT32);
    update("miss_mask", ge::DT_INT32);
    update("resident_counts", ge::DT_INT32);
    update("stats", ge::DT_INT32);
    this->Attr("sizes").AttrType(REQUIRED).ListInt();
    this->Attr("strides").AttrType(REQUIRED).ListInt();

    this->SetInferShape(hisparse::ascend950::infer_shape)
        .SetInferDataType(hisparse::ascend950::infer_data_type);
    this->AICore().SetTiling(hisparse::ascend950::tiling).AddConfig("ascend950");
  }

 private:
  void read(const char* operand, Option option) {
    this->Input(operand).ParamType(option).DataType({ge::DT_INT32}).Format({ge::FORMAT_ND});
  }

  // One name as input and output: written in place.
  void update(const char* operand, ge::DataType type) {
    this->Input(operand).ParamType(REQUIRED).DataType({type}).Format({ge::FORMAT_ND});
    this->Output(operand).ParamType(REQUIRED).DataType({type}).Format({ge::FORMAT_ND});
  }
};

OP_ADD(HisparseResolve);

}  // namespace ops
