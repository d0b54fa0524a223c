#pragma once

#include "register/op_impl_registry.h"

namespace platform_ascendc {

class PlatformAscendC {
 public:
  explicit PlatformAscendC(const void* platform)
      : context_(static_cast<const gert::TilingContext*>(platform)) {}
  uint32_t GetCoreNumAiv() const { return context_->vector_cores; }

 private:
  const gert::TilingContext* context_;
};

}  // namespace platform_ascendc
