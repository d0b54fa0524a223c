// Latent row to C8: 4 tiles of 128 values, each with its FP32 scale, as E4M3FN codes.
//
//   amax  = largest |x| of the finite x of the tile
//   scale = amax / 448, at least 2^-116                                  (rule amax)
//         = 2^ceil(log2(max(amax / 448, 1e-4)))                          (rule pow2)
//   code  = E4M3FN nearest x / scale, ties to even, at most +-448
//
// Divisions are IEEE float32. Every form below gives the same bits. The results do not depend on whether the
// machine flushes subnormals to zero: the least scale of both rules is large enough for subnormal values to
// become codes of zero, and for every scale times code to be a normal float32.
#pragma once

#include "common/isa.h"
#include "transfer/c8.h"
#include "transfer/e4m3.h"
#include "transfer/elements.h"

namespace hisparse {

enum class ScaleRule { kAmax, kPow2 };

// latent: 512 elements; codes: 512 bytes; scales: 4 float32. Any addresses.
using QuantizeRow = void (*)(const char* latent, char* codes, char* scales) noexcept;

inline constexpr float kLeastScale = 0x1p-116f;
inline constexpr float kLeastPow2Ratio = 1e-4f;

template <ScaleRule kRule>
float tile_scale(float amax) noexcept {
  const float ratio = amax / kE4m3Max;
  if constexpr (kRule == ScaleRule::kAmax) return ratio > kLeastScale ? ratio : kLeastScale;
  const uint32_t bits = bits_of(ratio > kLeastPow2Ratio ? ratio : kLeastPow2Ratio);
  // Up to the next power of two on the bits themselves; a float log2 is off by one ulp near the powers.
  return float_of((bits + 0x7FFFFF) & 0x7F800000);
}

// Largest magnitude among the finite values of a tile. The vector forms take the largest of all, and come
// here only where that is an infinity or a NaN.
template <class Element>
float finite_amax(const char* tile) noexcept {
  uint32_t amax = 0;
  for (int64_t i = 0; i < kC8Tile; ++i) {
    const uint32_t magnitude = bits_of(Element::load(tile + i * Element::kBytes)) & 0x7FFFFFFFu;
    if (magnitude < kInfinityBits && magnitude > amax) amax = magnitude;
  }
  return float_of(amax);
}

template <class Element>
float amax_of(const char* tile, uint32_t largest_magnitude) noexcept {
  return largest_magnitude < kInfinityBits ? float_of(largest_magnitude) : finite_amax<Element>(tile);
}

template <class Element, ScaleRule kRule>
void quantize_row_scalar(const char* latent, char* codes, char* scales) noexcept {
  for (int64_t t = 0; t < kC8Tiles; ++t) {
    const char* tile = latent + t * kC8Tile * Element::kBytes;
    const float scale = tile_scale<kRule>(finite_amax<Element>(tile));
    for (int64_t i = 0; i < kC8Tile; ++i)
      codes[t * kC8Tile + i] =
          static_cast<char>(e4m3_encode(Element::load(tile + i * Element::kBytes) / scale));
    store_bits(scales + 4 * t, bits_of(scale));
  }
}

// The vector forms of pow2 multiply by 1 / scale, which is exact (2^-120 to 2^13), so that the product is
// the quotient bit for bit; the quotient of amax has to be divided.

#if defined(HISPARSE_X86)

HISPARSE_TARGET_AVX512 inline __m128i e4m3_encode16(__m512 value) noexcept {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF));
  const __m512i clamped = _mm512_min_epu32(magnitude, _mm512_set1_epi32(kE4m3MaxBits));
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(clamped, 20), _mm512_set1_epi32(1));
  const __m512i rounded =
      _mm512_add_epi32(_mm512_add_epi32(clamped, _mm512_set1_epi32(static_cast<int>(kE4m3Round))), odd);
  const __m512i normal = _mm512_srli_epi32(rounded, 20);
  const __m512 shifted = _mm512_add_ps(_mm512_castsi512_ps(clamped), _mm512_set1_ps(kE4m3Magic));
  const __m512i subnormal = _mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(kE4m3MagicBits));
  const __mmask16 small = _mm512_cmplt_epu32_mask(clamped, _mm512_set1_epi32(kE4m3MinNormalBits));
  const __mmask16 nan = _mm512_cmpgt_epu32_mask(magnitude, _mm512_set1_epi32(kInfinityBits));
  __m512i code = _mm512_mask_mov_epi32(normal, small, subnormal);
  code = _mm512_mask_mov_epi32(code, nan, _mm512_set1_epi32(kE4m3Nan));
  const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80));
  return _mm512_cvtepi32_epi8(_mm512_or_si512(code, sign));
}

template <class Element, ScaleRule kRule>
HISPARSE_TARGET_AVX512 void quantize_row_avx512(const char* latent, char* codes, char* scales) noexcept {
  constexpr int kVectors = kC8Tile / 16;
  for (int64_t t = 0; t < kC8Tiles; ++t) {
    const char* tile = latent + t * kC8Tile * Element::kBytes;
    __m512 values[kVectors];
    __m512i largest = _mm512_setzero_si512();
    for (int i = 0; i < kVectors; ++i) {
      values[i] = Element::load16(tile + i * 16 * Element::kBytes);
      const __m512i bits = _mm512_castps_si512(values[i]);
      largest = _mm512_max_epu32(largest, _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF)));
    }
    const float scale = tile_scale<kRule>(amax_of<Element>(tile, _mm512_reduce_max_epu32(largest)));
    const __m512 factor = _mm512_set1_ps(kRule == ScaleRule::kPow2 ? 1.0f / scale : scale);
    for (int i = 0; i < kVectors; ++i) {
      const __m512 ratio =
          kRule == ScaleRule::kPow2 ? _mm512_mul_ps(values[i], factor) : _mm512_div_ps(values[i], factor);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + t * kC8Tile + i * 16), e4m3_encode16(ratio));
    }
    store_bits(scales + 4 * t, bits_of(scale));
  }
}

// Eight codes, each in the low byte of its lane.
HISPARSE_TARGET_AVX2 inline __m256i e4m3_encode8(__m256 value) noexcept {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF));
  const __m256i clamped = _mm256_min_epu32(magnitude, _mm256_set1_epi32(kE4m3MaxBits));
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(clamped, 20), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_add_epi32(_mm256_add_epi32(clamped, _mm256_set1_epi32(static_cast<int>(kE4m3Round))), odd);
  const __m256i normal = _mm256_srli_epi32(rounded, 20);
  const __m256 shifted = _mm256_add_ps(_mm256_castsi256_ps(clamped), _mm256_set1_ps(kE4m3Magic));
  const __m256i subnormal = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(kE4m3MagicBits));
  // Magnitudes are below 2^31, so signed comparisons will do.
  const __m256i small = _mm256_cmpgt_epi32(_mm256_set1_epi32(kE4m3MinNormalBits), clamped);
  const __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(kInfinityBits));
  __m256i code = _mm256_blendv_epi8(normal, subnormal, small);
  code = _mm256_blendv_epi8(code, _mm256_set1_epi32(kE4m3Nan), nan);
  const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
  return _mm256_or_si256(code, sign);
}

HISPARSE_TARGET_AVX2 inline uint32_t reduce_max(__m256i v) noexcept {
  __m128i m = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4E));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xB1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}

template <class Element, ScaleRule kRule>
HISPARSE_TARGET_AVX2 inline __m256i quantize8(const char* from, __m256 factor) noexcept {
  const __m256 value = Element::load8(from);
  return e4m3_encode8(kRule == ScaleRule::kPow2 ? _mm256_mul_ps(value, factor)
                                                : _mm256_div_ps(value, factor));
}

template <class Element, ScaleRule kRule>
HISPARSE_TARGET_AVX2 void quantize_row_avx2(const char* latent, char* codes, char* scales) noexcept {
  constexpr int64_t kStep = 8 * Element::kBytes;
  // Packing works on halves of a register and leaves groups of four bytes in the order 0 2 4 6 1 3 5 7.
  const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (int64_t t = 0; t < kC8Tiles; ++t) {
    const char* tile = latent + t * kC8Tile * Element::kBytes;
    __m256i largest = _mm256_setzero_si256();
    for (int i = 0; i < kC8Tile / 8; ++i) {
      const __m256i bits = _mm256_castps_si256(Element::load8(tile + i * kStep));
      largest = _mm256_max_epu32(largest, _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF)));
    }
    const float scale = tile_scale<kRule>(amax_of<Element>(tile, reduce_max(largest)));
    const __m256 factor = _mm256_set1_ps(kRule == ScaleRule::kPow2 ? 1.0f / scale : scale);
    for (int i = 0; i < kC8Tile / 32; ++i) {
      const char* from = tile + 4 * i * kStep;
      const __m256i a = quantize8<Element, kRule>(from, factor);
      const __m256i b = quantize8<Element, kRule>(from + kStep, factor);
      const __m256i c = quantize8<Element, kRule>(from + 2 * kStep, factor);
      const __m256i d = quantize8<Element, kRule>(from + 3 * kStep, factor);
      const __m256i packed = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + t * kC8Tile + 32 * i),
                          _mm256_permutevar8x32_epi32(packed, in_order));
    }
    store_bits(scales + 4 * t, bits_of(scale));
  }
}

#elif defined(HISPARSE_NEON)

// Four codes, each in the low byte of its lane.
inline uint32x4_t e4m3_encode4(float32x4_t value) noexcept {
  const uint32x4_t bits = vreinterpretq_u32_f32(value);
  const uint32x4_t magnitude = vandq_u32(bits, vdupq_n_u32(0x7FFFFFFF));
  const uint32x4_t clamped = vminq_u32(magnitude, vdupq_n_u32(kE4m3MaxBits));
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(clamped, 20), vdupq_n_u32(1));
  const uint32x4_t normal = vshrq_n_u32(vaddq_u32(vaddq_u32(clamped, vdupq_n_u32(kE4m3Round)), odd), 20);
  const float32x4_t shifted = vaddq_f32(vreinterpretq_f32_u32(clamped), vdupq_n_f32(kE4m3Magic));
  const uint32x4_t subnormal = vsubq_u32(vreinterpretq_u32_f32(shifted), vdupq_n_u32(kE4m3MagicBits));
  const uint32x4_t small = vcltq_u32(clamped, vdupq_n_u32(kE4m3MinNormalBits));
  const uint32x4_t nan = vcgtq_u32(magnitude, vdupq_n_u32(kInfinityBits));
  const uint32x4_t code = vbslq_u32(nan, vdupq_n_u32(kE4m3Nan), vbslq_u32(small, subnormal, normal));
  return vorrq_u32(code, vandq_u32(vshrq_n_u32(bits, 24), vdupq_n_u32(0x80)));
}

template <class Element, ScaleRule kRule>
uint16x4_t quantize4(const char* from, float32x4_t factor) noexcept {
  const float32x4_t value = Element::load4(from);
  return vmovn_u32(
      e4m3_encode4(kRule == ScaleRule::kPow2 ? vmulq_f32(value, factor) : vdivq_f32(value, factor)));
}

template <class Element, ScaleRule kRule>
void quantize_row_neon(const char* latent, char* codes, char* scales) noexcept {
  constexpr int64_t kStep = 4 * Element::kBytes;
  for (int64_t t = 0; t < kC8Tiles; ++t) {
    const char* tile = latent + t * kC8Tile * Element::kBytes;
    uint32x4_t largest = vdupq_n_u32(0);
    for (int i = 0; i < kC8Tile / 4; ++i) {
      const uint32x4_t bits = vreinterpretq_u32_f32(Element::load4(tile + i * kStep));
      largest = vmaxq_u32(largest, vandq_u32(bits, vdupq_n_u32(0x7FFFFFFF)));
    }
    const float scale = tile_scale<kRule>(amax_of<Element>(tile, vmaxvq_u32(largest)));
    const float32x4_t factor = vdupq_n_f32(kRule == ScaleRule::kPow2 ? 1.0f / scale : scale);
    for (int i = 0; i < kC8Tile / 16; ++i) {
      const char* from = tile + 4 * i * kStep;
      const uint16x8_t low = vcombine_u16(quantize4<Element, kRule>(from, factor),
                                          quantize4<Element, kRule>(from + kStep, factor));
      const uint16x8_t high = vcombine_u16(quantize4<Element, kRule>(from + 2 * kStep, factor),
                                           quantize4<Element, kRule>(from + 3 * kStep, factor));
      vst1q_u8(bytes(codes + t * kC8Tile + 16 * i), vcombine_u8(vmovn_u16(low), vmovn_u16(high)));
    }
    store_bits(scales + 4 * t, bits_of(scale));
  }
}

#endif

template <class Element, ScaleRule kRule>
QuantizeRow quantize_row(Isa isa) noexcept {
#if defined(HISPARSE_X86)
  if (isa == Isa::kAvx512) return quantize_row_avx512<Element, kRule>;
  if (isa == Isa::kAvx2) return quantize_row_avx2<Element, kRule>;
#elif defined(HISPARSE_NEON)
  if (isa == Isa::kNeon) return quantize_row_neon<Element, kRule>;
#endif
  (void)isa;
  return quantize_row_scalar<Element, kRule>;
}

}  // namespace hisparse
