// The distinct host rows that a run needs, numbered in order of first reference.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "common/isa.h"

namespace hisparse {

// A number for every host row, looked up at the row itself: two bytes a host row and thread, of which the
// system commits only the pages that are touched (a host row of 79 layers is 50 KB, and block tables keep the
// rows of a request in few pages). No hashing, no probing, and 16 rows are looked up by one gather. Entries
// are 0 between runs: reset() takes back the rows of the last one, so its cost is that of the run and not of
// the pool.
class HostRowIndex {
 public:
  // Empties the index and makes room for `capacity` rows below `host_rows`.
  void reset(int64_t host_rows, int64_t capacity) {
    for (int32_t i = 0; i < size_; ++i) numbers_[keys_[i]] = 0;
    size_ = 0;
    if (host_rows > rows_) {
      // One past the end: a 32-bit gather of the last entry reads two bytes more.
      auto* grown = static_cast<uint16_t*>(std::calloc(static_cast<size_t>(host_rows) + 1, sizeof(uint16_t)));
      if (grown == nullptr) throw std::bad_alloc();
      numbers_.reset(grown);
      rows_ = host_rows;
    }
    // unite() may pass the limit by the lanes of one vector before it looks, and a vector is stored whole.
    if (static_cast<int64_t>(keys_.size()) < capacity + 2 * kLanes) keys_.resize(capacity + 2 * kLanes);
  }

  int32_t size() const noexcept { return size_; }
  int32_t key(int64_t number) const noexcept { return keys_[number]; }
  const int32_t* keys() const noexcept { return keys_.data(); }

  // Number of the row, which is entered if it is new. 0 <= row < host_rows.
  int32_t insert(int32_t row) noexcept {
    uint16_t& number = numbers_[row];
    if (number == 0) {
      keys_[size_] = row;
      number = static_cast<uint16_t>(++size_);
    }
    return number - 1;
  }

  // Number of the row, or -1. Any value may be asked for.
  int32_t find(int32_t row) const noexcept {
    return static_cast<uint32_t>(row) < static_cast<uint64_t>(rows_) ? numbers_[row] - 1 : -1;
  }

#if defined(HISPARSE_X86)
  // Number + 1 of sixteen rows, 0 for a row that is not in the index; any values.
  HISPARSE_TARGET_AVX512 __m512i find16(__m512i rows) const noexcept {
    const __mmask16 known = _mm512_cmplt_epu32_mask(rows, _mm512_set1_epi32(static_cast<int>(rows_)));
    const __m512i words = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), known, rows, numbers_.get(), 2);
    return _mm512_and_si512(words, _mm512_set1_epi32(0xFFFF));
  }

  // Enters the chosen rows, none of which is in the index; returns number + 1 of every lane, 0 where not
  // chosen.
  HISPARSE_TARGET_AVX512 __m512i insert16(__m512i rows, __mmask16 chosen) noexcept {
    // Lanes with the row of a lane before them wait until that one has its number.
    const __m512i earlier =
        _mm512_maskz_conflict_epi32(chosen, _mm512_mask_mov_epi32(_mm512_set1_epi32(-1), chosen, rows));
    const __mmask16 first = _mm512_mask_testn_epi32_mask(chosen, earlier, earlier);
    const __m512i order = _mm512_maskz_expand_epi32(
        first, _mm512_add_epi32(_mm512_set1_epi32(size_ + 1),
                                _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)));
    int32_t* keys = keys_.data() + size_;
    _mm512_storeu_si512(keys, _mm512_maskz_compress_epi32(first, rows));
    const int count = __builtin_popcount(first);
    for (int i = 0; i < count; ++i) numbers_[keys[i]] = static_cast<uint16_t>(size_ + 1 + i);
    size_ += count;
    return first == chosen ? order : _mm512_maskz_mov_epi32(chosen, find16(rows));
  }

  HISPARSE_TARGET_AVX2 __m256i find8(__m256i rows) const noexcept {
    const __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(rows_)), rows);
    const __m256i known = _mm256_andnot_si256(_mm256_srai_epi32(rows, 31), below);
    const __m256i words = _mm256_mask_i32gather_epi32(
        _mm256_setzero_si256(), reinterpret_cast<const int*>(numbers_.get()), rows, known, 2);
    return _mm256_and_si256(words, _mm256_set1_epi32(0xFFFF));
  }
#endif

  static constexpr int64_t kLanes = 16;

 private:
  struct Free {
    void operator()(uint16_t* p) const noexcept { std::free(p); }
  };
  std::unique_ptr<uint16_t[], Free> numbers_;  // [rows_]: number + 1, or 0
  std::vector<int32_t> keys_;
  int64_t rows_ = 0;
  int32_t size_ = 0;
};

}  // namespace hisparse
