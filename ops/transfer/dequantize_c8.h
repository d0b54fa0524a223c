// dequantize_c8: latent[i] = code * scale of cache row row_ids[i], in float32, then rounded to the dtype of
// latent; rope[i] = its rope bytes. Rows of zeros where the id is outside the cache.
#pragma once

#include "common/isa.h"
#include "common/slab.h"
#include "common/view.h"
#include "transfer/c8.h"
#include "transfer/e4m3.h"
#include "transfer/elements.h"

namespace hisparse {

// codes: 512 bytes; scales: 4 float32; latent: 512 elements. Any addresses.
using DequantizeRow = void (*)(const char* codes, const char* scales, char* latent) noexcept;

template <class Element>
void dequantize_row_scalar(const char* codes, const char* scales, char* latent) noexcept {
  for (int64_t t = 0; t < kC8Tiles; ++t) {
    const float scale = Float32::load(scales + 4 * t);
    for (int64_t i = t * kC8Tile; i < (t + 1) * kC8Tile; ++i)
      Element::store(latent + i * Element::kBytes, e4m3_decode(static_cast<uint8_t>(codes[i])) * scale);
  }
}

// The vector forms read a code as a float16 with the same mantissa bits, whose value is 2^-8 of the code's.
// Float16 subnormals are converted exactly and at full speed, which float32 subnormals would not be.

#if defined(HISPARSE_X86)

HISPARSE_TARGET_AVX512 inline __m512 e4m3_decode16(const char* codes) noexcept {
  const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  // The sign goes to bit 15 and the other bits to bits 7 to 13; the arithmetic shift leaves a copy of the
  // sign in bit 14.
  const __m256i half = _mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(wide, 8), 1),
                                        _mm256_set1_epi16(static_cast<int16_t>(0xBF80)));
  const __m256i unsigned_half = _mm256_and_si256(half, _mm256_set1_epi16(0x7FFF));
  const __mmask16 nan = _mm256_cmpeq_epi16_mask(unsigned_half, _mm256_set1_epi16(kE4m3Nan << 7));
  const __m256i number = _mm256_mask_mov_epi16(half, nan, _mm256_set1_epi16(0x7E00));
  return _mm512_mul_ps(_mm512_cvtph_ps(number), _mm512_set1_ps(256.0f));
}

template <class Element>
HISPARSE_TARGET_AVX512 void dequantize_row_avx512(const char* codes, const char* scales,
                                                  char* latent) noexcept {
  const __m512 quiet = _mm512_castsi512_ps(_mm512_set1_epi32(kNanBits));
  for (int64_t t = 0; t < kC8Tiles; ++t) {
    const __m512 scale = _mm512_set1_ps(Float32::load(scales + 4 * t));
    for (int64_t i = t * kC8Tile; i < (t + 1) * kC8Tile; i += 16) {
      const __m512 value = _mm512_mul_ps(e4m3_decode16(codes + i), scale);
      const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
      Element::store16(latent + i * Element::kBytes, _mm512_mask_mov_ps(value, nan, quiet));
    }
  }
}

HISPARSE_TARGET_AVX2 inline __m256 e4m3_decode8(const char* codes) noexcept {
  const __m128i wide = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
  const __m128i half =
      _mm_and_si128(_mm_srai_epi16(_mm_slli_epi16(wide, 8), 1), _mm_set1_epi16(static_cast<int16_t>(0xBF80)));
  const __m128i unsigned_half = _mm_and_si128(half, _mm_set1_epi16(0x7FFF));
  const __m128i nan = _mm_cmpeq_epi16(unsigned_half, _mm_set1_epi16(kE4m3Nan << 7));
  const __m128i number = _mm_or_si128(half, _mm_and_si128(nan, _mm_set1_epi16(0x7E00)));
  return _mm256_mul_ps(_mm256_cvtph_ps(number), _mm256_set1_ps(256.0f));
}

template <class Element>
HISPARSE_TARGET_AVX2 void dequantize_row_avx2(const char* codes, const char* scales, char* latent) noexcept {
  const __m256 quiet = _mm256_castsi256_ps(_mm256_set1_epi32(kNanBits));
  for (int64_t t = 0; t < kC8Tiles; ++t) {
    const __m256 scale = _mm256_set1_ps(Float32::load(scales + 4 * t));
    for (int64_t i = t * kC8Tile; i < (t + 1) * kC8Tile; i += 8) {
      const __m256 value = _mm256_mul_ps(e4m3_decode8(codes + i), scale);
      const __m256 nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
      Element::store8(latent + i * Element::kBytes, _mm256_blendv_ps(value, quiet, nan));
    }
  }
}

#elif defined(HISPARSE_NEON)

template <class Element>
void dequantize4(float16x4_t half, float32x4_t scale, char* to) noexcept {
  const float32x4_t value = vmulq_f32(vmulq_f32(vcvt_f32_f16(half), vdupq_n_f32(256.0f)), scale);
  const uint32x4_t number = vceqq_f32(value, value);
  const float32x4_t quiet = vreinterpretq_f32_u32(vdupq_n_u32(kNanBits));
  Element::store4(to, vbslq_f32(number, value, quiet));
}

template <class Element>
void dequantize_row_neon(const char* codes, const char* scales, char* latent) noexcept {
  for (int64_t t = 0; t < kC8Tiles; ++t) {
    const float32x4_t scale = vdupq_n_f32(Float32::load(scales + 4 * t));
    for (int64_t i = t * kC8Tile; i < (t + 1) * kC8Tile; i += 8) {
      const uint16x8_t wide = vmovl_u8(vld1_u8(bytes(codes + i)));
      const uint16x8_t magnitude = vandq_u16(wide, vdupq_n_u16(0x7F));
      const uint16x8_t sign = vshlq_n_u16(veorq_u16(wide, magnitude), 8);
      const uint16x8_t nan = vceqq_u16(magnitude, vdupq_n_u16(kE4m3Nan));
      // All exponent bits of a float16, so that the code of NaN becomes one.
      const uint16x8_t half =
          vorrq_u16(vorrq_u16(vshlq_n_u16(magnitude, 7), sign), vandq_u16(nan, vdupq_n_u16(0x7C00)));
      char* to = latent + i * Element::kBytes;
      dequantize4<Element>(vreinterpret_f16_u16(vget_low_u16(half)), scale, to);
      dequantize4<Element>(vreinterpret_f16_u16(vget_high_u16(half)), scale, to + 4 * Element::kBytes);
    }
  }
}

#endif

template <class Element>
DequantizeRow dequantize_row(Isa isa) noexcept {
#if defined(HISPARSE_X86)
  if (isa == Isa::kAvx512) return dequantize_row_avx512<Element>;
  if (isa == Isa::kAvx2) return dequantize_row_avx2<Element>;
#elif defined(HISPARSE_NEON)
  if (isa == Isa::kNeon) return dequantize_row_neon<Element>;
#endif
  (void)isa;
  return dequantize_row_scalar<Element>;
}

// Rows selected at random arrive late, and decoding one fills the time to look ahead: ask for each row this
// many rows before it is decoded.
inline constexpr int64_t kPrefetchRows = 2;

// Always inline, since GCC 12 drops calls of a function that does nothing but prefetch.
__attribute__((always_inline)) inline void prefetch_row(const Slab& cache, int64_t id) noexcept {
  if (!cache.contains(id)) return;
  const char* row = cache.row(id);
  for (int64_t at = 0; at < kC8RowBytes; at += 64) __builtin_prefetch(row + at);
}

// Rows [begin, end) of the outputs.
inline void dequantize_c8(const Slab& cache, C8Layout layout, const Ids& row_ids, const Slab& latent,
                          const Slab& rope, DequantizeRow dequantize, int64_t begin, int64_t end) noexcept {
  for (int64_t i = begin; i < end; ++i) {
    if (i + kPrefetchRows < end) prefetch_row(cache, row_ids(i + kPrefetchRows));
    const int64_t id = row_ids(i);
    if (!cache.contains(id)) {
      std::memset(latent.row(i), 0, static_cast<size_t>(latent.row_bytes));
      std::memset(rope.row(i), 0, kC8RopeBytes);
      continue;
    }
    const char* row = cache.row(id);
    dequantize(row, row + layout.scales, latent.row(i));
    copy_row(rope.row(i), row + layout.rope, kC8RopeBytes);
  }
}

}  // namespace hisparse
