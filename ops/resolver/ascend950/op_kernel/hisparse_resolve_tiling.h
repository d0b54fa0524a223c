// What the host tells the kernel.
#pragma once

#include <cstdint>

#include "resolver/simt/slots.h"

struct HisparseResolveTiling {
  int64_t sizes[hisparse::slots::kNumSizes];
  int64_t strides[hisparse::slots::kNumStrides];
};
