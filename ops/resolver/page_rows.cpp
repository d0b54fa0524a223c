#include "resolver/page_rows.h"

#include <algorithm>

namespace hisparse {
namespace {

#if defined(HISPARSE_X86)

// Columns are compared in 32 bit, where no position reaches a column past the largest.
int clamp_to_int32(int64_t value) noexcept { return static_cast<int>(std::min<int64_t>(value, INT32_MAX)); }

HISPARSE_TARGET_AVX512
int64_t find_rows_avx512(const PageRows& where, const int32_t* positions, int64_t count,
                         int32_t* rows) noexcept {
  const __m128i shift = _mm_cvtsi32_si128(where.page.shift);
  const __m512i offset_bits = _mm512_set1_epi32(static_cast<int>(where.page.rows - 1));
  const __m512i columns = _mm512_set1_epi32(clamp_to_int32(where.cols));
  const __m512i last_block = _mm512_set1_epi32(clamp_to_int32(where.last_block));
  const __m512i limit = _mm512_set1_epi32(clamp_to_int32(where.rows));
  const __m512i none = _mm512_set1_epi32(-1);
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m512i position = _mm512_loadu_si512(positions + i);
    const __m512i column = _mm512_sra_epi32(position, shift);  // negative below position 0: no table has it
    const __mmask16 inside = _mm512_cmplt_epu32_mask(column, columns);
    const __m512i block = _mm512_mask_i32gather_epi32(none, inside, column, where.blocks, 4);
    const __mmask16 mapped = _mm512_mask_cmple_epi32_mask(
        _mm512_cmpgt_epi32_mask(block, _mm512_setzero_si512()), block, last_block);
    const __m512i row =
        _mm512_or_si512(_mm512_sll_epi32(block, shift), _mm512_and_si512(position, offset_bits));
    const __mmask16 valid = _mm512_mask_cmplt_epu32_mask(mapped, row, limit);
    _mm512_storeu_si512(rows + i, _mm512_mask_mov_epi32(none, valid, row));
  }
  return i;
}

HISPARSE_TARGET_AVX2
int64_t find_rows_avx2(const PageRows& where, const int32_t* positions, int64_t count,
                       int32_t* rows) noexcept {
  const __m128i shift = _mm_cvtsi32_si128(where.page.shift);
  const __m256i offset_bits = _mm256_set1_epi32(static_cast<int>(where.page.rows - 1));
  const __m256i columns = _mm256_set1_epi32(clamp_to_int32(where.cols));
  const __m256i past_last = _mm256_set1_epi32(clamp_to_int32(where.last_block + 1));
  const __m256i limit = _mm256_set1_epi32(clamp_to_int32(where.rows));
  const __m256i none = _mm256_set1_epi32(-1), zero = _mm256_setzero_si256();
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256i position = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(positions + i));
    const __m256i column = _mm256_sra_epi32(position, shift);
    const __m256i inside =
        _mm256_andnot_si256(_mm256_srai_epi32(column, 31), _mm256_cmpgt_epi32(columns, column));
    const __m256i block = _mm256_mask_i32gather_epi32(none, where.blocks, column, inside, 4);
    const __m256i mapped =
        _mm256_and_si256(_mm256_cmpgt_epi32(block, zero), _mm256_cmpgt_epi32(past_last, block));
    const __m256i row =
        _mm256_or_si256(_mm256_sll_epi32(block, shift), _mm256_and_si256(position, offset_bits));
    const __m256i valid = _mm256_and_si256(
        mapped, _mm256_andnot_si256(_mm256_srai_epi32(row, 31), _mm256_cmpgt_epi32(limit, row)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(rows + i), _mm256_blendv_epi8(none, row, valid));
  }
  return i;
}

#endif

}  // namespace

void find_rows(Isa isa, const PageRows& where, const int32_t* positions, int64_t count,
               int32_t* rows) noexcept {
  int64_t i = 0;
#if defined(HISPARSE_X86)
  if (where.page.shift >= 0 && where.page.shift < 31) {
    if (isa == Isa::kAvx512) i = find_rows_avx512(where, positions, count, rows);
    else if (isa == Isa::kAvx2) i = find_rows_avx2(where, positions, count, rows);
  }
#endif
  (void)isa;
  for (; i < count; ++i) rows[i] = static_cast<int32_t>(where(positions[i]));
}

}  // namespace hisparse
