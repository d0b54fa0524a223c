#include "resolver/lru_partition.h"

#include <array>

namespace hisparse {
namespace {

// Branch-free: both lists are written and one of them moves on.
Partition partition_scalar(const int16_t* lru, int64_t begin, int64_t size, const uint32_t* bits,
                           int16_t* hits, int16_t* others, Partition done) noexcept {
  for (int64_t i = begin; i < size; ++i) {
    const int16_t slot = lru[i];
    if (slot < 0 || slot >= size) return {0, 0, false};
    const bool hit = has_bit(bits, slot);
    hits[done.hits] = slot;
    others[done.others] = slot;
    done.hits += hit;
    done.others += !hit;
  }
  return done;
}

#if defined(HISPARSE_X86) || defined(HISPARSE_NEON)
// For a mask of eight 16-bit lanes, the byte shuffle that moves the chosen lanes to the front.
struct alignas(16) Shuffle {
  uint8_t bytes[16];
};

constexpr std::array<Shuffle, 256> make_shuffles() {
  std::array<Shuffle, 256> table{};
  for (int mask = 0; mask < 256; ++mask) {
    int to = 0;
    for (int lane = 0; lane < 8; ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      table[mask].bytes[to++] = static_cast<uint8_t>(2 * lane);
      table[mask].bytes[to++] = static_cast<uint8_t>(2 * lane + 1);
    }
    while (to < 16) table[mask].bytes[to++] = 0;
  }
  return table;
}

constexpr std::array<Shuffle, 256> kShuffles = make_shuffles();
#endif

#if defined(HISPARSE_X86)

HISPARSE_TARGET_AVX2
inline void store_chosen(int16_t* to, __m128i slots, unsigned mask) noexcept {
  const __m128i order = _mm_load_si128(reinterpret_cast<const __m128i*>(kShuffles[mask].bytes));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_shuffle_epi8(slots, order));
}

HISPARSE_TARGET_AVX2
Partition partition_avx2(const int16_t* lru, int64_t size, const uint32_t* bits, int16_t* hits,
                         int16_t* others) noexcept {
  Partition done;
  const __m256i limit = _mm256_set1_epi32(static_cast<int>(size));
  int64_t i = 0;
  for (; i + 8 <= size; i += 8) {
    const __m128i slots = _mm_loadu_si128(reinterpret_cast<const __m128i*>(lru + i));
    const __m256i wide = _mm256_cvtepi16_epi32(slots);
    const __m256i bad =
        _mm256_or_si256(_mm256_srai_epi32(wide, 31),
                        _mm256_xor_si256(_mm256_cmpgt_epi32(limit, wide), _mm256_set1_epi32(-1)));
    if (!_mm256_testz_si256(bad, bad)) return {0, 0, false};
    const __m256i words =
        _mm256_i32gather_epi32(reinterpret_cast<const int*>(bits), _mm256_srli_epi32(wide, 5), 4);
    // The slot's bit moves to the sign position.
    const __m256i shift = _mm256_andnot_si256(wide, _mm256_set1_epi32(31));
    const __m256i sign = _mm256_sllv_epi32(words, shift);
    const unsigned mask = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(sign)));
    store_chosen(hits + done.hits, slots, mask);
    store_chosen(others + done.others, slots, mask ^ 0xFF);
    const int count = __builtin_popcount(mask);
    done.hits += count;
    done.others += 8 - count;
  }
  return partition_scalar(lru, i, size, bits, hits, others, done);
}

HISPARSE_TARGET_AVX512
Partition partition_avx512(const int16_t* lru, int64_t size, const uint32_t* bits, int16_t* hits,
                           int16_t* others) noexcept {
  Partition done;
  const __m512i limit = _mm512_set1_epi32(static_cast<int>(size));
  int64_t i = 0;
  for (; i + 32 <= size; i += 32) {
    const __m512i slots = _mm512_loadu_si512(lru + i);
    __mmask32 mask = 0;
    for (int half = 0; half < 2; ++half) {
      const __m256i narrow = half == 0 ? _mm512_castsi512_si256(slots) : _mm512_extracti64x4_epi64(slots, 1);
      const __m512i wide = _mm512_cvtepi16_epi32(narrow);
      if (_mm512_cmpge_epu32_mask(wide, limit) != 0) return {0, 0, false};  // negatives wrap high
      const __m512i words = _mm512_i32gather_epi32(_mm512_srli_epi32(wide, 5), bits, 4);
      const __m512i bit = _mm512_srlv_epi32(words, _mm512_and_epi32(wide, _mm512_set1_epi32(31)));
      const __mmask16 hit = _mm512_test_epi32_mask(bit, _mm512_set1_epi32(1));
      mask |= static_cast<__mmask32>(hit) << (16 * half);
    }
    _mm512_storeu_si512(hits + done.hits, _mm512_maskz_compress_epi16(mask, slots));
    _mm512_storeu_si512(others + done.others, _mm512_maskz_compress_epi16(~mask, slots));
    const int count = __builtin_popcount(mask);
    done.hits += count;
    done.others += 32 - count;
  }
  return partition_scalar(lru, i, size, bits, hits, others, done);
}

#elif defined(HISPARSE_NEON)

inline void store_chosen(int16_t* to, uint16x8_t slots, unsigned mask) noexcept {
  const uint8x16_t order = vld1q_u8(kShuffles[mask].bytes);
  vst1q_s16(to, vreinterpretq_s16_u8(vqtbl1q_u8(vreinterpretq_u8_u16(slots), order)));
}

Partition partition_neon(const int16_t* lru, int64_t size, const uint32_t* bits, int16_t* hits,
                         int16_t* others) noexcept {
  Partition done;
  const uint16x8_t limit = vdupq_n_u16(static_cast<uint16_t>(size));
  int64_t i = 0;
  for (; i + 8 <= size; i += 8) {
    const uint16x8_t slots = vreinterpretq_u16_s16(vld1q_s16(lru + i));
    if (vmaxvq_u16(vcgeq_u16(slots, limit)) != 0) return {0, 0, false};  // negatives wrap high
    unsigned mask = 0;
    for (int lane = 0; lane < 8; ++lane) mask |= unsigned{has_bit(bits, lru[i + lane])} << lane;
    store_chosen(hits + done.hits, slots, mask);
    store_chosen(others + done.others, slots, mask ^ 0xFF);
    const int count = __builtin_popcount(mask);
    done.hits += count;
    done.others += 8 - count;
  }
  return partition_scalar(lru, i, size, bits, hits, others, done);
}

#endif

}  // namespace

Partition partition_lru(Isa isa, const int16_t* lru, int64_t size, const uint32_t* bits, int16_t* hits,
                        int16_t* others) noexcept {
#if defined(HISPARSE_X86)
  if (isa == Isa::kAvx512) return partition_avx512(lru, size, bits, hits, others);
  if (isa == Isa::kAvx2) return partition_avx2(lru, size, bits, hits, others);
#elif defined(HISPARSE_NEON)
  if (isa == Isa::kNeon) return partition_neon(lru, size, bits, hits, others);
#endif
  (void)isa;
  return partition_scalar(lru, 0, size, bits, hits, others, {});
}

}  // namespace hisparse
