// What the machine can do at best: rows copied, bytes read.
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace {

constexpr int64_t kBytesPerTask = 64 << 10;

template <class F>
void share_out(int64_t count, int64_t bytes_each, const F& f) {
  const int64_t grain = std::max<int64_t>(1, kBytesPerTask / std::max<int64_t>(1, bytes_each));
  if (count <= grain) return f(int64_t{0}, count);
  torch::stable::parallel_for(0, count, grain, f);
}

int32_t mix(const char* bytes, int64_t words) {
  int32_t sum = 0, word;
  for (int64_t w = 0; w < words; ++w) {
    std::memcpy(&word, bytes + 4 * w, 4);
    sum ^= word;
  }
  return sum;
}

template <int64_t kAhead>
int64_t copy_ahead(const int64_t* from, const int64_t* to, int64_t count, int64_t bytes, int64_t read) {
  int64_t total = 0;
  share_out(count, bytes, [&](int64_t begin, int64_t end) {
    int32_t sum = 0;
    for (int64_t i = begin; i < end; ++i) {
      const auto* source = reinterpret_cast<const char*>(from[i]);
      if (kAhead > 0 && i + kAhead < end)
        for (int64_t at = 0; at < read; at += 64)
          __builtin_prefetch(reinterpret_cast<const char*>(from[i + kAhead]) + at);
      std::memcpy(reinterpret_cast<char*>(to[i]), source, static_cast<size_t>(bytes));
      if (read > bytes) sum ^= mix(source + bytes, (read - bytes) / 4);
    }
    __atomic_fetch_add(&total, sum, __ATOMIC_RELAXED);
  });
  return total;
}

}  // namespace

extern "C" {

// to[i] <- from[i], `bytes` each, of `read` bytes that must be read: the addresses are known, so nothing is
// left but the bytes.
int64_t copy_rows(const int64_t* from, const int64_t* to, int64_t count, int64_t bytes, int64_t read) {
  return copy_ahead<0>(from, to, count, bytes, read);
}

// The same with the next rows asked for ahead of time.
int64_t copy_rows_ahead(const int64_t* from, const int64_t* to, int64_t count, int64_t bytes, int64_t read) {
  return copy_ahead<8>(from, to, count, bytes, read);
}

// Reads every byte of `count` pieces of memory once.
int64_t read_words(const int64_t* pieces, int64_t count, int64_t words) {
  int64_t total = 0;
  share_out(count, words * 4, [&](int64_t begin, int64_t end) {
    int32_t sum = 0;
    for (int64_t i = begin; i < end; ++i) sum ^= mix(reinterpret_cast<const char*>(pieces[i]), words);
    __atomic_fetch_add(&total, sum, __ATOMIC_RELAXED);
  });
  return total;
}

}  // extern "C"
