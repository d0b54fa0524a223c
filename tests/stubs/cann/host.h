// An op call as ACLNN makes it: operands by position.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "register/op_impl_registry.h"

namespace stub {

struct Argument {
  bool given = false;
  void* data = nullptr;
  int64_t elements = 0;
  ge::DataType type = ge::DT_UNDEFINED;
  std::vector<int64_t> list;  // of an attribute
};

// Calls the registered op: tiling, then the kernel once per block. Returns what was refused.
std::string execute(const char* api, const std::vector<Argument>& arguments);

}  // namespace stub
