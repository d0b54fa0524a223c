#include "resolver/resolve_steps.h"

#include <algorithm>
#include <cstring>

#include "resolver/lru_partition.h"

namespace hisparse {
namespace {

int32_t answer_of(HostRowIndex& index, int32_t host, int32_t resident) noexcept {
  if (resident >= 0) return resident;
  return host >= 0 ? from_union(index.insert(host)) : kNothing;
}

#if defined(HISPARSE_X86)

// Rows that are known already are answered by one gather; the new ones of a vector are entered one by one,
// which also takes care of a row that stands in it twice.
HISPARSE_TARGET_AVX512
int64_t unite_avx512(HostRowIndex& index, const int32_t* host, const int32_t* resident, int64_t count,
                     int64_t limit, int32_t* answers, int64_t* num_resident) noexcept {
  const __m512i none = _mm512_set1_epi32(kNothing);
  int64_t i = 0;
  for (; i + 16 <= count && index.size() <= limit; i += 16) {
    const __m512i rows = _mm512_loadu_si512(host + i);
    const __m512i physical = resident != nullptr ? _mm512_loadu_si512(resident + i) : none;
    const __mmask16 is_resident = _mm512_cmpgt_epi32_mask(physical, none);
    __m512i number = index.find16(rows);  // + 1, so none - number is the answer
    const __mmask16 wanted = _mm512_cmpgt_epi32_mask(rows, none) & ~is_resident;
    const __mmask16 fresh = _mm512_mask_testn_epi32_mask(wanted, number, number);
    if (fresh != 0) number = _mm512_or_si512(number, index.insert16(rows, fresh));
    _mm512_storeu_si512(answers + i,
                        _mm512_mask_mov_epi32(_mm512_sub_epi32(none, number), is_resident, physical));
    *num_resident += __builtin_popcount(is_resident);
  }
  return i;
}

HISPARSE_TARGET_AVX512
int64_t match_owners_avx512(const HostRowIndex& index, const int32_t* owner, int64_t hot_size, uint32_t* bits,
                            int32_t* slots, int64_t* matched) noexcept {
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  int64_t slot = 0;
  for (; slot + 16 <= hot_size; slot += 16) {
    const __m512i number = index.find16(_mm512_loadu_si512(owner + slot));
    const __mmask16 hits = _mm512_test_epi32_mask(number, number);
    std::memcpy(reinterpret_cast<char*>(bits) + slot / 8, &hits, sizeof(hits));
    *matched += __builtin_popcount(hits);
    if (hits != 0)
      _mm512_mask_i32scatter_epi32(slots - 1, hits, number,
                                   _mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<int>(slot))), 4);
  }
  return slot;
}

HISPARSE_TARGET_AVX2
int64_t match_owners_avx2(const HostRowIndex& index, const int32_t* owner, int64_t hot_size, uint32_t* bits,
                          int32_t* slots, int64_t* matched) noexcept {
  alignas(32) int32_t numbers[8];
  const __m256i zero = _mm256_setzero_si256();
  int64_t slot = 0;
  for (; slot + 8 <= hot_size; slot += 8) {
    const __m256i number = index.find8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(owner + slot)));
    const auto hits =
        static_cast<uint8_t>(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(number, zero))));
    std::memcpy(reinterpret_cast<char*>(bits) + slot / 8, &hits, sizeof(hits));
    if (hits == 0) continue;
    *matched += __builtin_popcount(hits);
    _mm256_store_si256(reinterpret_cast<__m256i*>(numbers), number);
    for (unsigned lanes = hits; lanes != 0; lanes &= lanes - 1) {
      const int lane = __builtin_ctz(lanes);
      slots[numbers[lane] - 1] = static_cast<int32_t>(slot) + lane;
    }
  }
  return slot;
}

// Compression in a register and a masked store: on several machines the storing form of compress is slow.
HISPARSE_TARGET_AVX512
inline void store_chosen(int32_t* to, __mmask16 chosen, __m512i values) noexcept {
  const __mmask16 first = static_cast<__mmask16>((1u << __builtin_popcount(chosen)) - 1);
  _mm512_mask_storeu_epi32(to, first, _mm512_maskz_compress_epi32(chosen, values));
}

HISPARSE_TARGET_AVX512
int64_t answer_entries_avx512(const AttentionIndex& attend, const int32_t* answers, int64_t count,
                              const int32_t* union_rows, bool prefix, int32_t* attention,
                              int32_t* physical_rows, int64_t* valid) noexcept {
  const __m128i shift = _mm_cvtsi32_si128(attend.page.shift);
  const __m512i offset_bits = _mm512_set1_epi32(static_cast<int>(attend.page.rows - 1));
  const __m512i stride = _mm512_set1_epi32(static_cast<int>(attend.block_stride));
  const __m512i none = _mm512_set1_epi32(-1), first = _mm512_set1_epi32(-2);
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m512i answer = _mm512_loadu_si512(answers + i);
    const __mmask16 from_union = _mm512_cmplt_epi32_mask(answer, none);
    __m512i physical = answer;
    if (from_union != 0)
      physical =
          _mm512_mask_i32gather_epi32(answer, from_union, _mm512_sub_epi32(first, answer), union_rows, 4);
    const __mmask16 answered = _mm512_cmpgt_epi32_mask(physical, none);
    const __m512i block = _mm512_sra_epi32(physical, shift);
    const __m512i row =
        _mm512_add_epi32(_mm512_mullo_epi32(block, stride), _mm512_and_si512(physical, offset_bits));
    if (prefix) {
      store_chosen(attention + *valid, answered, row);
      if (physical_rows != nullptr) store_chosen(physical_rows + *valid, answered, physical);
    } else {
      _mm512_storeu_si512(attention + i, _mm512_mask_mov_epi32(none, answered, row));
      if (physical_rows != nullptr) _mm512_storeu_si512(physical_rows + i, physical);
    }
    *valid += __builtin_popcount(answered);
  }
  return i;
}

#endif

}  // namespace

int64_t unite(Isa isa, HostRowIndex& index, const int32_t* host, const int32_t* resident, int64_t count,
              int64_t limit, int32_t* answers) noexcept {
  int64_t num_resident = 0, i = 0;
#if defined(HISPARSE_X86)
  if (isa == Isa::kAvx512) i = unite_avx512(index, host, resident, count, limit, answers, &num_resident);
#endif
  (void)isa;
  for (; i < count && index.size() <= limit; ++i) {
    const int32_t physical = resident != nullptr ? resident[i] : -1;
    answers[i] = answer_of(index, host[i], physical);
    num_resident += physical >= 0;
  }
  return num_resident;
}

// Slots are looked at in slot order, not in LRU order: which slots are hits does not depend on it.
int64_t match_owners(Isa isa, const HostRowIndex& index, const int32_t* owner, int64_t hot_size,
                     uint32_t* bits, int32_t* slots) noexcept {
  std::fill_n(slots, index.size(), -1);
  std::fill_n(bits, (hot_size + 31) / 32, 0u);
  int64_t matched = 0, slot = 0;
#if defined(HISPARSE_X86)
  if (isa == Isa::kAvx512) slot = match_owners_avx512(index, owner, hot_size, bits, slots, &matched);
  else if (isa == Isa::kAvx2) slot = match_owners_avx2(index, owner, hot_size, bits, slots, &matched);
#endif
  (void)isa;
  for (; slot < hot_size; ++slot) {
    const int32_t number = index.find(owner[slot]);
    if (number < 0) continue;
    slots[number] = static_cast<int32_t>(slot);
    set_bit(bits, slot);
    ++matched;
  }
  return matched;
}

int64_t answer_entries(Isa isa, const AttentionIndex& attend, const int32_t* answers, int64_t count,
                       const int32_t* union_rows, bool prefix, int32_t* attention,
                       int32_t* physical_rows) noexcept {
  int64_t valid = 0, i = 0;
#if defined(HISPARSE_X86)
  if (isa == Isa::kAvx512 && attend.page.shift >= 0 && attend.page.shift < 31)
    i = answer_entries_avx512(attend, answers, count, union_rows, prefix, attention, physical_rows, &valid);
#endif
  (void)isa;
  for (; i < count; ++i) {
    const int32_t physical = answers[i] < kNothing ? union_rows[union_number(answers[i])] : answers[i];
    const bool answered = physical >= 0;
    if (!prefix || answered) {
      const int64_t at = prefix ? valid : i;
      attention[at] = attend(physical);
      if (physical_rows != nullptr) physical_rows[at] = physical;
    }
    valid += answered;
  }
  if (prefix) {
    std::fill(attention + valid, attention + count, -1);
    if (physical_rows != nullptr) std::fill(physical_rows + valid, physical_rows + count, -1);
  }
  return valid;
}

}  // namespace hisparse
