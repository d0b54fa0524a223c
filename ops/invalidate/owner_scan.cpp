#include "invalidate/owner_scan.h"

#include <algorithm>

namespace hisparse {
namespace {

// The smallest page in use; larger ones count as several.
constexpr int64_t kPageRows = 64;

// One place in this many is taken, so that few groups of owners hold one to look up in vain. 32 KB are in
// L1 anyhow; half a megabyte still is in a core's own cache.
constexpr int64_t kPlacesPerKey = 256;
constexpr int kMinFilterBits = 15;
constexpr int kMaxFilterBits = 19;

// The top bits of this hash are used: rows at a fixed distance spread evenly.
uint32_t hash(uint32_t value) noexcept { return value * 2654435769u; }  // 2^32 / golden ratio

int bits_for(int64_t size) noexcept {
  int bits = 1;
  while ((int64_t{1} << bits) < size) ++bits;
  return bits;
}

constexpr int kGroup = 16;  // owners looked at before the first branch: most groups hold nothing stale

// The scan waits for memory: asking for owners this far ahead saves a fifth of its time. Asking for what is
// past the end is harmless.
inline void prefetch(const int32_t* owner) noexcept { __builtin_prefetch(owner + 512); }

// The other forms of this function do the same with wider registers.
void drop_ranges_scalar(int32_t* owner, int64_t size, const RowRange* ranges, int64_t count) noexcept {
  for (int64_t i = 0; i < size; i += kGroup) {
    prefetch(owner + i);
    const int64_t group = std::min<int64_t>(kGroup, size - i);
    int32_t found[kGroup] = {};  // -1: in a range
    for (int64_t r = 0; r < count; ++r)
      for (int64_t j = 0; j < group; ++j)
        found[j] |= -int32_t{static_cast<uint32_t>(owner[i + j]) - ranges[r].first <= ranges[r].span};
    int32_t any = 0;
    for (int j = 0; j < kGroup; ++j) any |= found[j];
    if (any == 0) continue;
    for (int64_t j = 0; j < group; ++j) owner[i + j] |= found[j];
  }
}

#if defined(HISPARSE_X86)

HISPARSE_TARGET_AVX2
void drop_ranges_avx2(int32_t* owner, int64_t size, const RowRange* ranges, int64_t count) noexcept {
  int64_t i = 0;
  for (; i + 8 <= size; i += 8) {
    prefetch(owner + i);
    __m256i* const at = reinterpret_cast<__m256i*>(owner + i);
    const __m256i rows = _mm256_loadu_si256(at);
    __m256i found = _mm256_setzero_si256();
    for (int64_t r = 0; r < count; ++r) {
      const __m256i offset = _mm256_sub_epi32(rows, _mm256_set1_epi32(static_cast<int>(ranges[r].first)));
      const __m256i span = _mm256_set1_epi32(static_cast<int>(ranges[r].span));
      found = _mm256_or_si256(found, _mm256_cmpeq_epi32(_mm256_min_epu32(offset, span), offset));
    }
    if (!_mm256_testz_si256(found, found)) _mm256_storeu_si256(at, _mm256_or_si256(rows, found));
  }
  drop_ranges_scalar(owner + i, size - i, ranges, count);
}

HISPARSE_TARGET_AVX512
void drop_ranges_avx512(int32_t* owner, int64_t size, const RowRange* ranges, int64_t count) noexcept {
  int64_t i = 0;
  for (; i + 16 <= size; i += 16) {
    prefetch(owner + i);
    const __m512i rows = _mm512_loadu_si512(owner + i);
    __mmask16 found = 0;
    for (int64_t r = 0; r < count; ++r) {
      const __m512i offset = _mm512_sub_epi32(rows, _mm512_set1_epi32(static_cast<int>(ranges[r].first)));
      found |= _mm512_cmple_epu32_mask(offset, _mm512_set1_epi32(static_cast<int>(ranges[r].span)));
    }
    if (found != 0) _mm512_mask_storeu_epi32(owner + i, found, _mm512_set1_epi32(-1));
  }
  drop_ranges_scalar(owner + i, size - i, ranges, count);
}

#elif defined(HISPARSE_NEON)

void drop_ranges_neon(int32_t* owner, int64_t size, const RowRange* ranges, int64_t count) noexcept {
  int64_t i = 0;
  for (; i + 4 <= size; i += 4) {
    prefetch(owner + i);
    const uint32x4_t rows = vreinterpretq_u32_s32(vld1q_s32(owner + i));
    uint32x4_t found = vdupq_n_u32(0);
    for (int64_t r = 0; r < count; ++r) {
      const uint32x4_t offset = vsubq_u32(rows, vdupq_n_u32(ranges[r].first));
      found = vorrq_u32(found, vcleq_u32(offset, vdupq_n_u32(ranges[r].span)));
    }
    if (vmaxvq_u32(found) != 0) vst1q_s32(owner + i, vreinterpretq_s32_u32(vorrq_u32(rows, found)));
  }
  drop_ranges_scalar(owner + i, size - i, ranges, count);
}

#endif

void drop_ranges(Isa isa, int32_t* owner, int64_t size, const RowRange* ranges, int64_t count) noexcept {
#if defined(HISPARSE_X86)
  if (isa == Isa::kAvx512) return drop_ranges_avx512(owner, size, ranges, count);
  if (isa == Isa::kAvx2) return drop_ranges_avx2(owner, size, ranges, count);
#elif defined(HISPARSE_NEON)
  if (isa == Isa::kNeon) return drop_ranges_neon(owner, size, ranges, count);
#endif
  (void)isa;
  drop_ranges_scalar(owner, size, ranges, count);
}

// Filter and table of a set.
struct Lookup {
  const uint8_t* filter;
  uint32_t key_mask;
  int filter_shift;
  const int32_t* table;
  int table_shift;

  uint32_t may_contain(int32_t row) const noexcept {  // 0 or 1
    return filter[hash(static_cast<uint32_t>(row) & key_mask) >> filter_shift];
  }

  bool contains(int32_t row) const noexcept {
    if (row < 0) return false;  // -1 marks an empty place
    const uint32_t mask = (uint32_t{1} << (32 - table_shift)) - 1;
    uint32_t at = hash(static_cast<uint32_t>(row)) >> table_shift;
    while (table[at] >= 0 && table[at] != row) at = (at + 1) & mask;
    return table[at] == row;
  }
};

[[gnu::always_inline]] inline void drop_found(int32_t* owner, int64_t size, const Lookup& lookup) noexcept {
  int64_t i = 0;
  for (; i + kGroup <= size; i += kGroup) {
    prefetch(owner + i);
    uint32_t maybe = 0;  // the group's first owner has the highest bit: shifting in is one instruction
#pragma GCC unroll 16
    for (int j = 0; j < kGroup; ++j) maybe = 2 * maybe + lookup.may_contain(owner[i + j]);
    for (; maybe != 0; maybe &= maybe - 1) {
      int32_t& held = owner[i + kGroup - 1 - __builtin_ctz(maybe)];
      if (lookup.contains(held)) held = -1;
    }
  }
  for (; i < size; ++i)
    if (lookup.contains(owner[i])) owner[i] = -1;
}

#if defined(HISPARSE_X86)
// The same code; BMI2 has shifts by a variable in one instruction instead of three.
HISPARSE_TARGET_AVX2
void drop_found_bmi2(int32_t* owner, int64_t size, const Lookup& lookup) noexcept {
  drop_found(owner, size, lookup);
}
#endif

}  // namespace

void StaleSets::clear() noexcept {
  sets_.clear();
  filters_.clear();
  tables_.clear();
}

void StaleSets::add(const int32_t* rows, int64_t count) {
  StaleRows set;
  RowRange last;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t offset = static_cast<uint32_t>(rows[i]) - last.first;
    if (set.num_ranges > 0 && offset <= last.span + 1) {
      last.span = std::max(last.span, offset);
    } else {
      last = {static_cast<uint32_t>(rows[i]), 0};
      ++set.num_ranges;
    }
    if (set.num_ranges <= StaleRows::kMaxRanges) set.ranges[set.num_ranges - 1] = last;
  }
  if (set.num_ranges > StaleRows::kMaxRanges) {
    add_filter(set, rows, count);
    add_table(set, rows, count);
  }
  sets_.push_back(set);
}

void StaleSets::add_filter(StaleRows& set, const int32_t* rows, int64_t count) {
  // Whole pages need one place each; single rows far apart are told apart one by one, because their pages
  // hold many rows that are not stale.
  const int64_t pages = set.num_ranges + count / kPageRows;
  const bool by_page = 8 * pages <= count;
  const int64_t keys = by_page ? pages : count;
  const int bits = std::clamp(bits_for(kPlacesPerKey * keys), kMinFilterBits, kMaxFilterBits);
  set.key_mask = by_page ? ~static_cast<uint32_t>(kPageRows - 1) : ~uint32_t{0};
  set.filter_shift = 32 - bits;
  set.filter = static_cast<int64_t>(filters_.size());
  filters_.resize(filters_.size() + (size_t{1} << bits));
  for (int64_t i = 0; i < count; ++i)
    filters_[set.filter + (hash(static_cast<uint32_t>(rows[i]) & set.key_mask) >> set.filter_shift)] = 1;
}

void StaleSets::add_table(StaleRows& set, const int32_t* rows, int64_t count) {
  const int bits = bits_for(2 * count);
  const uint32_t mask = (uint32_t{1} << bits) - 1;
  set.table_shift = 32 - bits;
  set.table = static_cast<int64_t>(tables_.size());
  tables_.resize(tables_.size() + (size_t{1} << bits), -1);
  int32_t* const table = tables_.data() + set.table;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t at = hash(static_cast<uint32_t>(rows[i])) >> set.table_shift;
    while (table[at] >= 0 && table[at] != rows[i]) at = (at + 1) & mask;
    table[at] = rows[i];
  }
}

void StaleSets::drop(Isa isa, int64_t set_index, int32_t* owner, int64_t size) const noexcept {
  const StaleRows& set = sets_[set_index];
  if (set.num_ranges <= StaleRows::kMaxRanges)
    return drop_ranges(isa, owner, size, set.ranges, set.num_ranges);
  const Lookup lookup{filters_.data() + set.filter, set.key_mask, set.filter_shift,
                      tables_.data() + set.table, set.table_shift};
#if defined(HISPARSE_X86)
  if (isa == Isa::kAvx512 || isa == Isa::kAvx2) return drop_found_bmi2(owner, size, lookup);
#endif
  drop_found(owner, size, lookup);
}

}  // namespace hisparse
