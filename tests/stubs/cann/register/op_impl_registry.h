// The few CANN types that op_host uses, with the documented meaning, so that definition, tiling and shape inference
// run on a host without CANN. Only what ops/resolver/ascend950 calls is here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace ge {

using graphStatus = uint32_t;
constexpr graphStatus GRAPH_SUCCESS = 0;
constexpr graphStatus GRAPH_FAILED = 0xFFFFFFFF;
enum DataType { DT_INT32 = 3, DT_INT16 = 6, DT_INT64 = 9, DT_UNDEFINED = 28 };
enum Format { FORMAT_ND = 2 };

}  // namespace ge

namespace gert {

class Shape {
 public:
  explicit Shape(std::vector<int64_t> dims = {}) : dims_(std::move(dims)) {}
  int64_t GetShapeSize() const {
    int64_t size = 1;
    for (const int64_t dim : dims_) size *= dim;
    return size;
  }

 private:
  std::vector<int64_t> dims_;
};

class StorageShape {
 public:
  explicit StorageShape(Shape shape) : shape_(std::move(shape)) {}
  const Shape& GetStorageShape() const { return shape_; }

 private:
  Shape shape_;
};

template <class T>
class TypedContinuousVector {
 public:
  explicit TypedContinuousVector(std::vector<T> values) : values_(std::move(values)) {}
  size_t GetSize() const { return values_.size(); }
  const T* GetData() const { return values_.data(); }

 private:
  std::vector<T> values_;
};

class RuntimeAttrs {
 public:
  std::vector<TypedContinuousVector<int64_t>> lists;
  const TypedContinuousVector<int64_t>* GetListInt(size_t index) const {
    return index < lists.size() ? &lists[index] : nullptr;
  }
};

// A call: what the framework hands to tiling, and what tiling hands back.
class TilingContext {
 public:
  std::vector<StorageShape> inputs;
  std::vector<bool> given;
  RuntimeAttrs attrs;
  std::vector<char> tiling_data;
  uint32_t block_dim = 0;
  uint32_t ub_bytes = 0;
  uint64_t tiling_key = 0;
  std::vector<size_t> workspaces;
  uint32_t vector_cores = 0;

  const RuntimeAttrs* GetAttrs() const { return &attrs; }
  const StorageShape* GetRequiredInputShape(size_t index) const { return GetOptionalInputShape(index); }
  const StorageShape* GetOptionalInputShape(size_t index) const {
    return index < inputs.size() && given[index] ? &inputs[index] : nullptr;
  }
  template <class T>
  T* GetTilingData() {
    tiling_data.assign(sizeof(T), 0);
    return reinterpret_cast<T*>(tiling_data.data());
  }
  ge::graphStatus SetBlockDim(uint32_t blocks) { return block_dim = blocks, ge::GRAPH_SUCCESS; }
  ge::graphStatus SetDynUBufSize(uint32_t bytes) { return ub_bytes = bytes, ge::GRAPH_SUCCESS; }
  ge::graphStatus SetTilingKey(uint64_t key) { return tiling_key = key, ge::GRAPH_SUCCESS; }
  size_t* GetWorkspaceSizes(size_t count) { return workspaces.assign(count, 0), workspaces.data(); }
  const void* GetPlatformInfo() const { return this; }
};

class InferShapeContext {
 public:
  std::vector<Shape> inputs, outputs;
  const Shape* GetRequiredInputShape(size_t index) const {
    return index < inputs.size() ? &inputs[index] : nullptr;
  }
  Shape* GetOutputShape(size_t index) { return index < outputs.size() ? &outputs[index] : nullptr; }
};

class InferDataTypeContext {
 public:
  std::vector<ge::DataType> inputs, outputs;
  ge::DataType GetRequiredInputDataType(size_t index) const {
    return index < inputs.size() ? inputs[index] : ge::DT_UNDEFINED;
  }
  ge::graphStatus SetOutputDataType(size_t index, ge::DataType type) {
    if (index >= outputs.size()) return ge::GRAPH_FAILED;
    outputs[index] = type;
    return ge::GRAPH_SUCCESS;
  }
};

}  // namespace gert
