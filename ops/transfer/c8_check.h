// What the checks of the three C8 ops share; the same as in python/hisparse_ops/transfer_c8.py.
#pragma once

#include "common/check.h"
#include "transfer/c8.h"

namespace hisparse {

// A [tokens, width] argument of one of some dtypes.
inline Slab c8_part(const char* op, const char* argument, const Tensor& t,
                    std::initializer_list<ScalarType> dtypes, int64_t width, int64_t tokens, Access access) {
  check_cpu(op, argument, t);
  check_dtype(op, argument, t, dtypes);
  check_dim(op, argument, t, 2);
  check_size(op, argument, t, 0, "tokens", tokens);
  check_size(op, argument, t, 1, "width", width);
  check_rows(op, argument, t, access == Access::kWrite);
  return slab(op, argument, t, access);
}

// Rope values are moved as they are, whatever 16-bit type they have.
inline Slab c8_rope(const char* op, const Tensor& t, int64_t tokens, Access access) {
  return c8_part(op, "rope", t, {ScalarType::BFloat16, ScalarType::Half, kInt16}, kC8Rope, tokens, access);
}

// The packed rows, as bytes or as the one FP8 encoding they hold; a cache of another encoding is refused.
inline Slab c8_cache(const char* op, const Tensor& t, Access access) {
  check_cpu(op, "cache", t);
  check_dtype(op, "cache", t, {ScalarType::Byte, ScalarType::Char, ScalarType::Float8_e4m3fn});
  const Slab cache = slab(op, "cache", t, access);
  check_size(op, "cache", t, t.dim() - 1, "row_bytes", kC8RowBytes);
  return cache;
}

inline C8Layout c8_layout(const char* op, const std::string& layout) {
  check_choice(op, "layout", layout, {"ascend", "core"});
  return layout == "ascend" ? kC8Ascend : kC8Core;
}

}  // namespace hisparse
