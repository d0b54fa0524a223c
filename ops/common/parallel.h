// The one place where kernels meet a thread pool.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cstdint>

#include "common/ownership.h"

namespace hisparse {

// Below this much work a second thread costs more than it saves (waking one takes some microseconds).
inline constexpr int64_t kBytesPerTask = 64 << 10;

// Beyond this much work every thread gets its part, so a writer need not count on.
inline int64_t bytes_for_all_threads() {
  return kBytesPerTask * static_cast<int64_t>(torch::stable::get_num_threads());
}

// f(begin, end) over [0, n), split so that no part moves less than about kBytesPerTask. f must not throw.
template <class F>
void parallel_rows(int64_t n, int64_t bytes_per_row, const F& f) {
  if (n <= 0) return;
  const int64_t grain = std::max<int64_t>(1, kBytesPerTask / std::max<int64_t>(1, bytes_per_row));
  if (n <= grain) return f(int64_t{0}, n);
  torch::stable::parallel_for(0, n, grain, f);
}

// f(part, parts), once per part; parts is 1 where the whole work is small. For writers that own a
// share of the destination: part p handles the rows that owns_row(row, p, parts) gives it, in order,
// so a row written twice holds the last write whatever the number of threads.
template <class F>
void parallel_parts(int64_t total_bytes, const F& f) {
  const int64_t parts =
      std::min<int64_t>(std::max<int64_t>(1, total_bytes / kBytesPerTask), torch::stable::get_num_threads());
  if (parts <= 1) return f(int64_t{0}, int64_t{1});
  torch::stable::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) f(part, parts);
  });
}

// f(item, share, shares), once for every item and each of its shares. For writers of several destinations
// (one a layer): items are dealt out whole where there are enough of them, and where there are not, each is
// split into shares that own their part of its destination as in parallel_parts.
template <class F>
void parallel_shares(int64_t items, int64_t total_bytes, const F& f) {
  const int64_t threads =
      std::min<int64_t>(std::max<int64_t>(1, total_bytes / kBytesPerTask), torch::stable::get_num_threads());
  if (threads <= 1) {
    for (int64_t item = 0; item < items; ++item) f(item, int64_t{0}, int64_t{1});
    return;
  }
  // About four tasks a thread, so that no thread is left with much more than its part.
  const int64_t shares = std::min(threads, (4 * threads + items - 1) / items);
  const int64_t tasks = items * shares;
  torch::stable::parallel_for(0, tasks, (tasks + threads - 1) / threads, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) f(task / shares, task % shares, shares);
  });
}

}  // namespace hisparse
