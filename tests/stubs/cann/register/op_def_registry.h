// OpDef and what hangs on it: it keeps what a definition says, for tests to read.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "register/op_impl_registry.h"

namespace ops {

enum Option { OPTIONAL, REQUIRED };

struct OpParamDef {
  std::string name;
  Option option = REQUIRED;
  std::vector<ge::DataType> types = {};
  OpParamDef& ParamType(Option value) { return option = value, *this; }
  OpParamDef& DataType(std::vector<ge::DataType> value) { return types = std::move(value), *this; }
  OpParamDef& Format(const std::vector<ge::Format>&) { return *this; }
};

struct OpAttrDef {
  std::string name;
  OpAttrDef& AttrType(Option) { return *this; }
  OpAttrDef& ListInt() { return *this; }
};

struct OpAICoreDef {
  ge::graphStatus (*tiling)(gert::TilingContext*) = nullptr;
  std::vector<std::string> socs;
  OpAICoreDef& SetTiling(ge::graphStatus (*function)(gert::TilingContext*)) {
    return tiling = function, *this;
  }
  OpAICoreDef& AddConfig(const char* soc) { return socs.emplace_back(soc), *this; }
};

class OpDef {
 public:
  explicit OpDef(const char* type) : type(type) {}
  std::string type;
  std::deque<OpParamDef> inputs, outputs;
  std::deque<OpAttrDef> attrs;
  OpAICoreDef core;
  ge::graphStatus (*infer_shape)(gert::InferShapeContext*) = nullptr;
  ge::graphStatus (*infer_data_type)(gert::InferDataTypeContext*) = nullptr;

  OpParamDef& Input(const char* name) { return inputs.emplace_back(OpParamDef{name}); }
  OpParamDef& Output(const char* name) { return outputs.emplace_back(OpParamDef{name}); }
  OpAttrDef& Attr(const char* name) { return attrs.emplace_back(OpAttrDef{name}); }
  OpDef& SetInferShape(ge::graphStatus (*function)(gert::InferShapeContext*)) {
    return infer_shape = function, *this;
  }
  OpDef& SetInferDataType(ge::graphStatus (*function)(gert::InferDataTypeContext*)) {
    return infer_data_type = function, *this;
  }
  OpAICoreDef& AICore() { return core; }
};

inline std::deque<OpDef>& registered_ops() {
  static std::deque<OpDef> ops;
  return ops;
}

}  // namespace ops

#define OP_ADD(op_type) \
  static const bool op_type##_added = (::ops::registered_ops().push_back(op_type(#op_type)), true)
