// copy_row_spans: destination rows [d, d + n) = source rows [s, s + n) for every span (s, d, n), in order.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/ownership.h"
#include "common/slab.h"
#include "common/view.h"

namespace hisparse {

// Destination rows are owned in chunks: long enough that a chunk is one fast memcpy (42 KB at 656 B a row),
// short enough that the pages of a small batch are still shared out.
inline constexpr int64_t kOwnedRows = 64;

struct RowSpan {
  int64_t source = 0;
  int64_t destination = 0;
  int64_t rows = 0;
};

inline RowSpan row_span(const Ids& spans, int64_t i) noexcept {
  return {spans(i, 0), spans(i, 1), spans(i, 2)};
}

// The span without its rows outside [0, source_rows) or [0, destination_rows); none left is rows <= 0.
// The three numbers may be any int64.
inline RowSpan clipped(RowSpan span, int64_t source_rows, int64_t destination_rows) noexcept {
  // The lowest int64 has no negation. One row nearer is still further below row 0 than a span can reach.
  span.source = std::max(span.source, -INT64_MAX);
  span.destination = std::max(span.destination, -INT64_MAX);
  const int64_t before = std::max({int64_t{0}, -span.source, -span.destination});
  if (span.rows <= before || __builtin_add_overflow(span.source, before, &span.source) ||
      __builtin_add_overflow(span.destination, before, &span.destination))
    return {};
  span.rows = std::min({span.rows - before, source_rows - span.source, destination_rows - span.destination});
  return span;
}

// Rows that exist on both sides, in pieces that stay inside one block of either.
inline void copy_run(const Slab& source, const Slab& destination, RowSpan run) noexcept {
  auto left_in_block = [](const Slab& s, int64_t row) {
    return s.block_rows - (s.blocks == 1 ? row : row % s.block_rows);
  };
  while (run.rows > 0) {
    const int64_t rows =
        std::min({run.rows, left_in_block(source, run.source), left_in_block(destination, run.destination)});
    copy_rows(destination.row(run.destination), destination.row_stride, source.row(run.source),
              source.row_stride, rows, source.row_bytes);
    run.source += rows;
    run.destination += rows;
    run.rows -= rows;
  }
}

// The rows of all spans that `share` of `shares` owns. Every share reads every span, so that of two spans
// with the same destination row the later one wins. Slabs and spans are taken by value: as locals they stay
// in registers.
inline void copy_row_spans(Slab source, Slab destination, Ids spans, int64_t share, int64_t shares) noexcept {
  if (source.row_bytes == 0) return;
  for (int64_t i = 0; i < spans.rows; ++i) {
    RowSpan span = row_span(spans, i);
    if (span.rows == 1) {
      // Decode mirrors one row a span: nothing to cut, no block ends to look for.
      if (source.contains(span.source) && destination.contains(span.destination) &&
          owns_row(span.destination / kOwnedRows, share, shares))
        copy_row(destination.row(span.destination), source.row(span.source), source.row_bytes);
      continue;
    }
    span = clipped(span, source.rows(), destination.rows());
    while (span.rows > 0) {
      const int64_t chunk = span.destination / kOwnedRows;
      const int64_t rows =
          shares == 1 ? span.rows : std::min(span.rows, (chunk + 1) * kOwnedRows - span.destination);
      if (owns_row(chunk, share, shares))
        copy_run(source, destination, {span.source, span.destination, rows});
      span.source += rows;
      span.destination += rows;
      span.rows -= rows;
    }
  }
}

}  // namespace hisparse
