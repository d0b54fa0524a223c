// Where positions stand: a block table turns them into rows.
#pragma once

#include <cstdint>

#include "common/isa.h"

namespace hisparse {

// Page number and offset of a row; a page size that is a power of two needs no division.
struct PageSize {
  int64_t rows = 1;
  int shift = -1;
  explicit PageSize(int64_t page_rows = 1) noexcept : rows(page_rows) {
    if ((page_rows & (page_rows - 1)) == 0) shift = __builtin_ctzll(page_rows);
  }
  int64_t page(int64_t row) const noexcept { return shift >= 0 ? row >> shift : row / rows; }
  int64_t start(int64_t page) const noexcept { return page * rows; }
};

// One row of a block table over paged rows of which there are `rows`.
struct PageRows {
  const int32_t* blocks = nullptr;
  int64_t cols = 0;
  PageSize page;
  int64_t rows = 0;
  int64_t last_block = -1;

  PageRows(const int32_t* table_row, int64_t columns, PageSize page_size, int64_t num_rows) noexcept
      : blocks(table_row),
        cols(columns),
        page(page_size),
        rows(num_rows),
        last_block(num_rows > 0 ? page_size.page(num_rows - 1) : -1) {}

  // The row of a position, or -1: negative, past the table, in the null block, past the rows.
  int64_t operator()(int64_t position) const noexcept {
    if (position < 0) return -1;
    const int64_t column = page.page(position);
    if (column >= cols) return -1;
    const int64_t block = blocks[column];
    if (block <= 0 || block > last_block) return -1;
    const int64_t at = page.start(block) + position - page.start(column);
    return at < rows ? at : -1;
  }
};

// rows[i] = where(positions[i]) for contiguous positions, a vector at a time.
void find_rows(Isa isa, const PageRows& where, const int32_t* positions, int64_t count,
               int32_t* rows) noexcept;

}  // namespace hisparse
