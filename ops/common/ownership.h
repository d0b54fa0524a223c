// Which part of a parallel writer owns a destination row; no torch, no thread pool.
#pragma once

#include <cstdint>

namespace hisparse {

// Destination rows are dealt out by a hash, so that strided rows do not all fall to one part.
inline bool owns_row(int64_t row, int64_t part, int64_t parts) noexcept {
  if (parts == 1) return true;
  const uint64_t mixed = static_cast<uint64_t>(row) * 0x9E3779B97F4A7C15ull >> 32;
  return static_cast<int64_t>(mixed * static_cast<uint64_t>(parts) >> 32) == part;
}

}  // namespace hisparse
