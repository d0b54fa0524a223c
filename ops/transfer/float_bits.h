// Scalar conversions between float32 and the 16-bit floats, to nearest, ties to even; a NaN becomes the
// quiet NaN without sign or payload, so that every form of a kernel writes the same bits.
#pragma once

#include <cstdint>
#include <cstring>

namespace hisparse {

inline constexpr uint32_t kInfinityBits = 0x7F800000;
inline constexpr uint32_t kNanBits = 0x7FC00000;

inline uint32_t bits_of(float value) noexcept {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) noexcept {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline bool is_nan(float value) noexcept { return (bits_of(value) & 0x7FFFFFFFu) > kInfinityBits; }

inline float float_of_bfloat16(uint16_t bits) noexcept { return float_of(static_cast<uint32_t>(bits) << 16); }

inline uint16_t bfloat16_of(float value) noexcept {
  const uint32_t bits = is_nan(value) ? kNanBits : bits_of(value);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

inline float float_of_float16(uint16_t half) noexcept {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7FFF;
  if (magnitude > 0x7C00) return float_of(sign | kNanBits);
  if (magnitude == 0x7C00) return float_of(sign | kInfinityBits);
  if (magnitude < 0x400) return float_of(sign | bits_of(static_cast<float>(magnitude) * 0x1p-24f));
  return float_of(sign | ((magnitude << 13) + (112u << 23)));
}

inline uint16_t float16_of(float value) noexcept {
  const uint32_t bits = bits_of(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > kInfinityBits) return 0x7E00;
  // 65520, half way between the largest float16 and the next power of two, is the first to become infinite.
  if (magnitude >= 0x477FF000) return static_cast<uint16_t>(sign | 0x7C00);
  // Below 2^-14 float16 values stand 2^-24 apart, as float32 values do from 0.5 on.
  if (magnitude < 0x38800000)
    return static_cast<uint16_t>(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)));
  return static_cast<uint16_t>(sign | ((magnitude - (112u << 23) + 0xFFF + (magnitude >> 13 & 1)) >> 13));
}

}  // namespace hisparse
