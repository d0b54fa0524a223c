// reset_requests: an empty hot buffer, owner -1 and LRU 0 .. hot_size - 1.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace hisparse {

// owner, lru: one state row, [hot_size]; hot_size <= 32768.
inline void reset_request(int32_t* owner, int16_t* lru, int64_t hot_size) noexcept {
  std::fill_n(owner, hot_size, -1);
  std::iota(lru, lru + hot_size, int16_t{0});
}

}  // namespace hisparse
