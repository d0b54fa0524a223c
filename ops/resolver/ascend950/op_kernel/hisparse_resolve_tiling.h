// What host and kernel agree on.
#pragma once

#include <cstdint>

#include "resolver/simt/slots.h"

struct HisparseResolveTiling {
  int64_t sizes[hisparse::slots::kNumSizes];
  int64_t strides[hisparse::slots::kNumStrides];
};

namespace hisparse::ascend950 {

// A thread has 32 registers in a launch of 1024, 64 in one of 512; nvcc needs 60 for the same body.
constexpr uint32_t kThreads = 512;

// Of the 256 KB of UB, 8 KB are the system's and at least 32 KB a data cache.
constexpr int64_t kUserUbBytes = 216 << 10;

}  // namespace hisparse::ascend950
