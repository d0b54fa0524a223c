// The distinct host rows that a run needs, numbered in order of first reference.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "common/isa.h"

namespace hisparse {

// Open addressing with linear probing at a load of at most one half. Keys go through a multiplicative
// hash of which the TOP bits are used: strided keys (the first row of every page, say) spread evenly, where
// low bits would pile them onto a few slots.
class HostRowSet {
 public:
  // Makes room for `capacity` keys and empties the set.
  void reset(int64_t capacity) {
    int bits = 5;
    while ((int64_t{1} << bits) < 2 * capacity) ++bits;
    shift_ = 32 - bits;
    mask_ = (uint32_t{1} << bits) - 1;
    if (table_.size() <= mask_) table_.resize(size_t{mask_} + 1);
    std::memset(table_.data(), 0xFF, (size_t{mask_} + 1) * sizeof(Entry));
    // Eight bits a table place keep false positives of the filter rare, and it stays in L1.
    filter_shift_ = shift_ > 3 ? shift_ - 3 : 0;
    const size_t words = (size_t{1} << (32 - filter_shift_)) / 32;
    if (filter_.size() < words) filter_.resize(words);
    std::memset(filter_.data(), 0, words * sizeof(uint32_t));
    if (static_cast<int64_t>(keys_.size()) < capacity) keys_.resize(capacity);
    size_ = 0;
  }

  int64_t size() const noexcept { return size_; }
  int32_t key(int64_t index) const noexcept { return keys_[index]; }

  // Number of the key, which is entered if it is new. key >= 0.
  int32_t insert(int32_t key) noexcept {
    const uint32_t hash = mix(key);
    for (uint32_t at = hash >> shift_;; at = (at + 1) & mask_) {
      Entry& entry = table_[at];
      if (entry.key == key) return entry.index;
      if (entry.key >= 0) continue;
      entry = {key, size_};
      keys_[size_] = key;
      filter_[hash >> filter_shift_ >> 5] |= 1u << (hash >> filter_shift_ & 31);
      return size_++;
    }
  }

  // Number of the key, or -1. Any value may be asked for.
  int32_t find(int32_t key) const noexcept {
    if (key < 0) return -1;
    for (uint32_t at = mix(key) >> shift_;; at = (at + 1) & mask_) {
      const Entry& entry = table_[at];
      if (entry.key == key) return entry.index;
      if (entry.key < 0) return -1;
    }
  }

  bool may_contain(int32_t key) const noexcept {
    const uint32_t bit = mix(key) >> filter_shift_;
    return key >= 0 && (filter_[bit >> 5] >> (bit & 31) & 1) != 0;
  }

#if defined(HISPARSE_X86)
  // Lanes of sixteen values that may be keys; the others are surely not.
  HISPARSE_TARGET_AVX512 __mmask16 may_contain16(__m512i keys) const noexcept {
    const __m512i hash = _mm512_mullo_epi32(keys, _mm512_set1_epi32(static_cast<int>(kMultiplier)));
    const __m512i bit = _mm512_srl_epi32(hash, _mm_cvtsi32_si128(filter_shift_));
    const __m512i words = _mm512_i32gather_epi32(_mm512_srli_epi32(bit, 5), filter_.data(), 4);
    const __m512i tested = _mm512_srlv_epi32(words, _mm512_and_epi32(bit, _mm512_set1_epi32(31)));
    return _mm512_test_epi32_mask(tested, _mm512_set1_epi32(1)) &
           _mm512_cmpge_epi32_mask(keys, _mm512_setzero_si512());
  }

  HISPARSE_TARGET_AVX2 unsigned may_contain8(__m256i keys) const noexcept {
    const __m256i hash = _mm256_mullo_epi32(keys, _mm256_set1_epi32(static_cast<int>(kMultiplier)));
    const __m256i bit = _mm256_srl_epi32(hash, _mm_cvtsi32_si128(filter_shift_));
    const __m256i words =
        _mm256_i32gather_epi32(reinterpret_cast<const int*>(filter_.data()), _mm256_srli_epi32(bit, 5), 4);
    // The key's bit moves to the sign position; a negative key is none.
    const __m256i sign = _mm256_sllv_epi32(words, _mm256_andnot_si256(bit, _mm256_set1_epi32(31)));
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_andnot_si256(keys, sign))));
  }
#endif

 private:
  struct Entry {
    int32_t key;
    int32_t index;
  };

  static constexpr uint32_t kMultiplier = 2654435769u;  // 2^32 / golden ratio
  static uint32_t mix(int32_t key) noexcept { return static_cast<uint32_t>(key) * kMultiplier; }

  std::vector<Entry> table_;
  std::vector<uint32_t> filter_;
  std::vector<int32_t> keys_;
  uint32_t mask_ = 0;
  int shift_ = 0;
  int filter_shift_ = 0;
  int32_t size_ = 0;
};

}  // namespace hisparse
