// pad_slots: out[i] = slots[i] for i < count, then -1.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace hisparse {

// slots, out: [n] with a stride in elements; count is clamped to [0, n].
template <class From, class To>
void pad_slots(const From* slots, int64_t slots_stride, int64_t count, To* out, int64_t out_stride,
               int64_t n) noexcept {
  count = std::clamp<int64_t>(count, 0, n);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t slot = slots[i * slots_stride];
    const bool fits = slot >= std::numeric_limits<To>::min() && slot <= std::numeric_limits<To>::max();
    out[i * out_stride] = static_cast<To>(fits ? slot : -1);
  }
  for (int64_t i = count; i < n; ++i) out[i * out_stride] = -1;
}

}  // namespace hisparse
