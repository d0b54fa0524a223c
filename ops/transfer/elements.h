// One element type of a latent row, and vectors of it for each instruction set: loaded as float32, stored
// from float32. Pointers are to bytes and may stand at any address. A float32 NaN stored by a vector form
// must be the quiet NaN without sign (kNanBits) already; the scalar form makes it so.
#pragma once

#include "common/isa.h"
#include "transfer/float_bits.h"

namespace hisparse {

template <class Bits>
Bits load_bits(const char* from) noexcept {
  Bits bits;
  std::memcpy(&bits, from, sizeof bits);
  return bits;
}

template <class Bits>
void store_bits(char* to, Bits bits) noexcept {
  std::memcpy(to, &bits, sizeof bits);
}

#if defined(HISPARSE_NEON)
inline const uint8_t* bytes(const char* p) noexcept { return reinterpret_cast<const uint8_t*>(p); }
inline uint8_t* bytes(char* p) noexcept { return reinterpret_cast<uint8_t*>(p); }
#endif

struct BFloat16 {
  static constexpr int64_t kBytes = 2;
  static float load(const char* from) noexcept { return float_of_bfloat16(load_bits<uint16_t>(from)); }
  static void store(char* to, float value) noexcept { store_bits(to, bfloat16_of(value)); }

#if defined(HISPARSE_X86)
  HISPARSE_TARGET_AVX512 static __m512 load16(const char* from) noexcept {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  HISPARSE_TARGET_AVX512 static void store16(char* to, __m512 value) noexcept {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    const __m256i packed = _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), packed);
  }
  HISPARSE_TARGET_AVX2 static __m256 load8(const char* from) noexcept {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  HISPARSE_TARGET_AVX2 static void store8(char* to, __m256 value) noexcept {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    const __m256i high = _mm256_srli_epi32(rounded, 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
  }
#elif defined(HISPARSE_NEON)
  static float32x4_t load4(const char* from) noexcept {
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(bytes(from))), 16));
  }
  static void store4(char* to, float32x4_t value) noexcept {
    const uint32x4_t bits = vreinterpretq_u32_f32(value);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7FFF)));
    vst1_u8(bytes(to), vreinterpret_u8_u16(vshrn_n_u32(rounded, 16)));
  }
#endif
};

struct Float16 {
  static constexpr int64_t kBytes = 2;
  static float load(const char* from) noexcept { return float_of_float16(load_bits<uint16_t>(from)); }
  static void store(char* to, float value) noexcept { store_bits(to, float16_of(value)); }

#if defined(HISPARSE_X86)
  HISPARSE_TARGET_AVX512 static __m512 load16(const char* from) noexcept {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  HISPARSE_TARGET_AVX512 static void store16(char* to, __m512 value) noexcept {
    const __m256i bits = _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bits);
  }
  HISPARSE_TARGET_AVX2 static __m256 load8(const char* from) noexcept {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  HISPARSE_TARGET_AVX2 static void store8(char* to, __m256 value) noexcept {
    const __m128i bits = _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bits);
  }
#elif defined(HISPARSE_NEON)
  static float32x4_t load4(const char* from) noexcept {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(bytes(from))));
  }
  static void store4(char* to, float32x4_t value) noexcept {
    vst1_u8(bytes(to), vreinterpret_u8_f16(vcvt_f16_f32(value)));
  }
#endif
};

struct Float32 {
  static constexpr int64_t kBytes = 4;
  static float load(const char* from) noexcept { return float_of(load_bits<uint32_t>(from)); }
  static void store(char* to, float value) noexcept {
    store_bits(to, is_nan(value) ? kNanBits : bits_of(value));
  }

#if defined(HISPARSE_X86)
  HISPARSE_TARGET_AVX512 static __m512 load16(const char* from) noexcept { return _mm512_loadu_ps(from); }
  HISPARSE_TARGET_AVX512 static void store16(char* to, __m512 value) noexcept { _mm512_storeu_ps(to, value); }
  HISPARSE_TARGET_AVX2 static __m256 load8(const char* from) noexcept {
    return _mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  HISPARSE_TARGET_AVX2 static void store8(char* to, __m256 value) noexcept {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_castps_si256(value));
  }
#elif defined(HISPARSE_NEON)
  static float32x4_t load4(const char* from) noexcept { return vreinterpretq_f32_u8(vld1q_u8(bytes(from))); }
  static void store4(char* to, float32x4_t value) noexcept {
    vst1q_u8(bytes(to), vreinterpretq_u8_f32(value));
  }
#endif
};

}  // namespace hisparse
