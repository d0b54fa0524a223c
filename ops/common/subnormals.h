// Arithmetic on subnormal numbers, whatever the thread was told.
#pragma once

#include "common/isa.h"

namespace hisparse {

// torch.set_flush_denormal() speaks to the calling thread alone, so results would depend on which thread of
// the pool computes a row. While this lives, the thread keeps subnormals.
class KeepSubnormals {
#if defined(HISPARSE_X86)
 public:
  KeepSubnormals() noexcept : before_(_mm_getcsr()) { _mm_setcsr(before_ & ~kFlush); }
  ~KeepSubnormals() { _mm_setcsr(before_); }
  KeepSubnormals(const KeepSubnormals&) = delete;
  KeepSubnormals& operator=(const KeepSubnormals&) = delete;

 private:
  static constexpr unsigned kFlush = 0x8040;  // flush-to-zero and denormals-are-zero
  unsigned before_;
#else
 public:
  KeepSubnormals() noexcept {}
  ~KeepSubnormals() {}
#endif
};

}  // namespace hisparse
