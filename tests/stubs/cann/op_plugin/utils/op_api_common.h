// torch_npu's call of an ACLNN op, which here goes to the op as op_host and op_kernel define it (host.cpp).
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <vector>

#include "host.h"

namespace stub {

inline Argument argument(const at::Tensor& t) {
  TORCH_CHECK(t.is_contiguous() && t.dim() == 1, "a tensor that ACLNN would copy before the kernel sees it");
  Argument a;
  a.given = true;
  a.data = t.data_ptr();
  a.elements = t.numel();
  a.type = t.scalar_type() == at::kInt     ? ge::DT_INT32
           : t.scalar_type() == at::kShort ? ge::DT_INT16
           : t.scalar_type() == at::kLong  ? ge::DT_INT64
                                           : ge::DT_UNDEFINED;
  return a;
}

inline Argument argument(const std::optional<at::Tensor>& t) { return t ? argument(*t) : Argument{}; }

inline Argument argument(at::IntArrayRef list) {
  Argument a;
  a.list = list.vec();
  return a;
}

}  // namespace stub

#define EXEC_NPU_CMD(api, ...)                                                                      \
  do {                                                                                              \
    const auto arguments = [](const auto&... each) {                                                \
      return std::vector<stub::Argument>{stub::argument(each)...};                                  \
    }(__VA_ARGS__);                                                                                 \
    const std::string error = stub::execute(#api, arguments);                                       \
    TORCH_CHECK(error.empty(), error);                                                              \
  } while (false)
