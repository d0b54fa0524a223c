// Argument checks of the CPU adapters. Same rules, same order, same words as python/hisparse_ops/checks.py,
// which serves the fakes and the device launchers; tests compare the two.
#pragma once

#include <torch/csrc/stable/c/shim.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/slab.h"
#include "common/view.h"

#if !defined(TORCH_TARGET_VERSION)
#error "build with TORCH_TARGET_VERSION, so that one binary serves torch 2.10 and later"
#endif

namespace hisparse {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

template <class... Parts>
std::string cat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

[[noreturn]] inline void fail(const char* op, const std::string& argument, const std::string& rule,
                              const std::string& got) {
  throw std::invalid_argument(cat(op, ": ", argument, " must ", rule, ", got ", got));
}

// The dtype by its code: torch::stable::Tensor::scalar_type() throws at dtypes that are younger than the ABI.
inline ScalarType dtype_of(const Tensor& t) {
  int32_t code = -1;
  aoti_torch_get_dtype(t.get(), &code);
  return static_cast<ScalarType>(code);
}

// As Python prints it; a dtype that no op takes and that is not listed has no name here.
inline std::string dtype_name(ScalarType type) {
  static constexpr const char* kNames[] = {"uint8",
                                           "int8",
                                           "int16",
                                           "int32",
                                           "int64",
                                           "float16",
                                           "float32",
                                           "float64",
                                           "complex32",
                                           "complex64",
                                           "complex128",
                                           "bool",
                                           "qint8",
                                           "quint8",
                                           "qint32",
                                           "bfloat16",
                                           "quint4x2",
                                           "quint2x4",
                                           "bits1x8",
                                           "bits2x4",
                                           "bits4x2",
                                           "bits8",
                                           "bits16",
                                           "float8_e5m2",
                                           "float8_e4m3fn",
                                           "float8_e5m2fnuz",
                                           "float8_e4m3fnuz",
                                           "uint16",
                                           "uint32",
                                           "uint64",
                                           "uint1",
                                           "uint2",
                                           "uint3",
                                           "uint4",
                                           "uint5",
                                           "uint6",
                                           "uint7",
                                           "int1",
                                           "int2",
                                           "int3",
                                           "int4",
                                           "int5",
                                           "int6",
                                           "int7",
                                           "float8_e8m0fnu",
                                           "float4_e2m1fn_x2"};
  const size_t code = static_cast<size_t>(type);
  return code < std::size(kNames) ? kNames[code] : "another dtype";
}

template <class Items, class Text>
std::string join(const Items& items, const char* between, const Text& text) {
  std::string out;
  bool first = true;
  for (const auto& item : items) {
    if (!first) out += between;
    out += text(item);
    first = false;
  }
  return out;
}

// Sizes or strides as Python prints a tuple's inside: "4, 8".
template <class Items>
std::string numbers(const Items& items) {
  return join(items, ", ", [](auto v) { return std::to_string(v); });
}

inline std::vector<int64_t> sizes_of(const Tensor& t) {
  std::vector<int64_t> out;
  for (int64_t d = 0; d < t.dim(); ++d) out.push_back(t.size(d));
  return out;
}

inline std::vector<int64_t> strides_of(const Tensor& t) {
  std::vector<int64_t> out;
  for (int64_t d = 0; d < t.dim(); ++d) out.push_back(t.stride(d));
  return out;
}

inline void check_cpu(const char* op, const std::string& argument, const Tensor& t) {
  if (!t.is_cpu()) fail(op, argument, "be on cpu", "another device");
}

inline ScalarType check_dtype(const char* op, const std::string& argument, const Tensor& t,
                              std::initializer_list<ScalarType> allowed) {
  const ScalarType type = dtype_of(t);
  for (ScalarType a : allowed)
    if (a == type) return type;
  fail(op, argument, "be " + join(allowed, " or ", dtype_name), dtype_name(type));
}

inline void check_dim(const char* op, const std::string& argument, const Tensor& t, int64_t dim) {
  if (t.dim() != dim) fail(op, argument, cat("be ", dim, "-D"), cat(t.dim(), "-D"));
}

// One named size, as in check_size(op, "hot_owner", t, 1, "hot_size", 10240).
inline void check_size(const char* op, const std::string& argument, const Tensor& t, int64_t dim,
                       const char* what, int64_t expected) {
  if (t.size(dim) != expected)
    fail(op, argument, cat("have ", what, " = ", expected, " in dimension ", dim),
         cat("shape (", numbers(sizes_of(t)), ")"));
}

inline void check_range(const char* op, const char* argument, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high)
    fail(op, argument, cat("be between ", low, " and ", high), std::to_string(value));
}

inline void check_choice(const char* op, const char* argument, const std::string& value,
                         std::initializer_list<const char*> allowed) {
  auto quoted = [](const std::string& text) { return '"' + text + '"'; };
  for (const char* a : allowed)
    if (value == a) return;
  fail(op, argument, "be " + join(allowed, " or ", quoted), quoted(value));
}

// A list argument with one item for each of another's.
inline void check_length(const char* op, const char* argument, const std::vector<Tensor>& list,
                         const char* other_argument, const std::vector<Tensor>& other) {
  if (list.size() != other.size())
    fail(op, argument, cat("have length = ", other.size(), " like ", other_argument),
         std::to_string(list.size()));
}

// "sources[3]". Cheap, since it is built for every item of every call.
inline std::string item(const char* list, size_t i) {
  return std::string(list) + '[' + std::to_string(i) + ']';
}

inline std::string strides_text(const Tensor& t) { return cat("strides (", numbers(strides_of(t)), ")"); }

// No element of a written tensor stands where another one does.
inline void check_distinct(const char* op, const std::string& argument, const Tensor& t) {
  if (t.numel() == 0) return;
  int64_t extent = 1;
  for (int64_t d = t.dim() - 1; d >= 0; --d) {
    if (t.size(d) == 1) continue;
    if (t.stride(d) < extent) fail(op, argument, "have row-major strides without overlap", strides_text(t));
    extent += (t.size(d) - 1) * t.stride(d);
  }
}

// Elements of a row stand side by side.
inline void check_rows(const char* op, const std::string& argument, const Tensor& t, bool written) {
  const int64_t last = t.dim() - 1;
  if (t.numel() > 0 && t.size(last) > 1 && t.stride(last) != 1)
    fail(op, argument, "have stride 1 in its last dimension", strides_text(t));
  if (written) check_distinct(op, argument, t);
}

// The value of a str argument, which a kernel takes as a StringHandle: torch's own conversion to std::string
// (as of torch 2.13) leaks a copy on every call. Call it first, so that nothing can throw before.
inline std::string take_string(StringHandle handle) {
  size_t length = 0;
  const char* characters = nullptr;
  std::string value;
  if (torch_string_length(handle, &length) == AOTI_TORCH_SUCCESS &&
      torch_string_c_str(handle, &characters) == AOTI_TORCH_SUCCESS)
    value.assign(characters, length);
  torch_delete_string(handle);
  return value;
}

enum class Access { kRead, kWrite };

inline ScalarType constexpr kInt16 = ScalarType::Short;
inline ScalarType constexpr kInt32 = ScalarType::Int;
inline ScalarType constexpr kInt64 = ScalarType::Long;

template <class T>
T* data(const Tensor& t) {
  return static_cast<T*>(const_cast<void*>(t.const_data_ptr()));
}

// Checks device, dtype, dimension and strides of a 2-D table and returns it.
template <class T>
Table<T> table(const char* op, const std::string& argument, const Tensor& t, ScalarType type, Access access) {
  check_cpu(op, argument, t);
  check_dtype(op, argument, t, {type});
  check_dim(op, argument, t, 2);
  check_rows(op, argument, t, access == Access::kWrite);
  return {data<T>(t), t.size(0), t.size(1), t.stride(0), true};
}

// Checks a written 1-D tensor and returns it.
template <class T>
Vector<T> vector(const char* op, const std::string& argument, const Tensor& t, ScalarType type,
                 const char* what, int64_t length) {
  check_cpu(op, argument, t);
  check_dtype(op, argument, t, {type});
  check_dim(op, argument, t, 1);
  check_size(op, argument, t, 0, what, length);
  check_distinct(op, argument, t);
  return {data<T>(t), length, t.stride(0), true};
}

inline Ids ids(const char* op, const std::string& argument, const Tensor& t, int64_t dim) {
  check_cpu(op, argument, t);
  const bool wide = check_dtype(op, argument, t, {kInt32, kInt64}) == kInt64;
  check_dim(op, argument, t, dim);
  const int64_t cols = dim == 2 ? t.size(1) : 1;
  return {t.const_data_ptr(), t.size(0), cols, t.stride(0), dim == 2 ? t.stride(1) : 0, wide, true};
}

// KV rows of any dtype, [rows, width] or [blocks, block_size, width], as bytes.
inline Slab slab(const char* op, const std::string& argument, const Tensor& t, Access access) {
  check_cpu(op, argument, t);
  const int64_t dim = t.dim();
  if (dim != 2 && dim != 3) fail(op, argument, "be 2-D or 3-D", cat(dim, "-D"));
  check_rows(op, argument, t, access == Access::kWrite);
  const int64_t item = t.element_size();
  Slab s;
  s.base = data<char>(t);
  s.blocks = dim == 3 ? t.size(0) : 1;
  s.block_rows = t.size(dim - 2);
  s.block_stride = dim == 3 ? t.stride(0) * item : 0;
  s.row_stride = t.stride(dim - 2) * item;
  s.row_bytes = t.size(dim - 1) * item;
  return s;
}

inline void check_row_bytes(const char* op, const std::string& argument, const Slab& s,
                            const std::string& other_argument, const Slab& other) {
  if (s.row_bytes != other.row_bytes)
    fail(op, argument, cat("have rows of ", other.row_bytes, " bytes like ", other_argument),
         cat(s.row_bytes, " bytes"));
}

inline void check_disjoint(const char* op, const std::string& argument, const Slab& s,
                           const std::string& other_argument, const Slab& other) {
  if (!disjoint(s, other)) fail(op, argument, cat("not overlap ", other_argument), "shared memory");
}

}  // namespace hisparse
