// The packed C8 row: 512 latent values as E4M3FN, 64 rope values of 16 bits, 4 FP32 scales (one for each
// tile of 128 latent values); 656 bytes in one of two orders.
#pragma once

#include <cstdint>

namespace hisparse {

inline constexpr int64_t kC8Latent = 512;
inline constexpr int64_t kC8Tile = 128;
inline constexpr int64_t kC8Tiles = kC8Latent / kC8Tile;
inline constexpr int64_t kC8Rope = 64;
inline constexpr int64_t kC8RopeBytes = 2 * kC8Rope;
inline constexpr int64_t kC8ScaleBytes = 4 * kC8Tiles;
inline constexpr int64_t kC8RowBytes = kC8Latent + kC8RopeBytes + kC8ScaleBytes;

// Where the parts stand in a row, in bytes; the latent codes come first in both.
struct C8Layout {
  int64_t rope;
  int64_t scales;
};

inline constexpr C8Layout kC8Ascend = {kC8Latent, kC8Latent + kC8RopeBytes};
inline constexpr C8Layout kC8Core = {kC8Latent + kC8ScaleBytes, kC8Latent};

}  // namespace hisparse
