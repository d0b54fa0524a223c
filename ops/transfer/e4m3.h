// E4M3FN, the 8-bit float of the latent: sign, 4 exponent bits (bias 7), 3 mantissa bits; no infinity, one
// NaN (0x7F, 0xFF), largest value 448, smallest 2^-9.
#pragma once

#include <cstdint>

#include "transfer/float_bits.h"

namespace hisparse {

inline constexpr float kE4m3Max = 448.0f;
inline constexpr uint32_t kE4m3MaxBits = 0x43E00000;        // 448 as float32
inline constexpr uint32_t kE4m3MinNormalBits = 0x3C800000;  // 2^-6, below it codes are 2^-9 apart
inline constexpr uint32_t kE4m3Nan = 0x7F;
// 2^14: a float32 that stands 2^-9 apart from the next, so that adding it rounds to the spacing of the
// subnormal codes and leaves the code in the low mantissa bits.
inline constexpr float kE4m3Magic = 16384.0f;
inline constexpr uint32_t kE4m3MagicBits = 0x46800000;
// Added before the shift by 20 that drops mantissa bits: half a code minus one (the odd bit is added to it,
// which makes ties even) and the change of exponent bias from 127 to 7.
inline constexpr uint32_t kE4m3Round = 0x0007FFFFu - (120u << 23);

// Nearest code, ties to even, larger values and infinities to +-448. The sign bit is always kept, so a NaN
// becomes 0x7F or 0xFF and -0.0 becomes 0x80.
inline uint8_t e4m3_encode(float value) noexcept {
  const uint32_t bits = bits_of(value);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  const uint32_t sign = bits >> 24 & 0x80;
  if (magnitude > kInfinityBits) return static_cast<uint8_t>(sign | kE4m3Nan);
  const uint32_t clamped = magnitude < kE4m3MaxBits ? magnitude : kE4m3MaxBits;
  const uint32_t code = clamped < kE4m3MinNormalBits
                            ? bits_of(float_of(clamped) + kE4m3Magic) - kE4m3MagicBits
                            : (clamped + kE4m3Round + (clamped >> 20 & 1)) >> 20;
  return static_cast<uint8_t>(sign | code);
}

// Exact.
inline float e4m3_decode(uint8_t code) noexcept {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80) << 24;
  const uint32_t magnitude = code & 0x7F;
  if (magnitude == kE4m3Nan) return float_of(sign | kNanBits);
  if (magnitude < 8) return float_of(sign | bits_of(static_cast<float>(magnitude) * 0x1p-9f));
  return float_of(sign | ((magnitude << 20) + (120u << 23)));
}

}  // namespace hisparse
