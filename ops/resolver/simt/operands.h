// The operands of a call as the kernel body reads them.
#pragma once

#include "resolver/simt/budget.h"
#include "resolver/simt/platform.h"
#include "resolver/simt/slots.h"

namespace hisparse::simt {

// Page number and offset of a row; a page size that is a power of two needs no division.
struct Pages {
  int64_t rows;
  int32_t shift;  // -1: not a power of two
};

struct IdList {
  HISPARSE_GLOBAL const int32_t* base;
  int64_t row_stride;
  int64_t column_stride;
  int32_t wide;  // int64
};

template <class T>
struct Rows {
  HISPARSE_GLOBAL T* base;  // null: not given
  int64_t stride;
};

struct ResolveOperands {
  int64_t rows, top_k, num_requests, num_states, hot_size;
  int64_t source_columns, resident_columns;
  int64_t host_rows, num_blocks, union_limit, attention_block_stride;
  int32_t prefix;
  int32_t translated;  // no source table: entries are host rows
  Pages page, source_page, resident_page;
  SharedLayout shared;

  IdList topk_indices, request_ids, request_state_indices, stable_lengths;
  Rows<const int32_t> source_block_table, hot_block_table, resident_block_table;
  Rows<int32_t> hot_owner;
  Rows<int16_t> lru_slots;
  Rows<int32_t> attention_indices, refill_host_rows, refill_hot_rows;
  Rows<int32_t> physical_rows, resolved_host_rows, miss_mask;
  Rows<int32_t> valid_counts, refill_counts, resident_counts;  // the stride is between elements
  Rows<int64_t> stats;
};

HISPARSE_HOST_SIMT Pages pages(int64_t rows) {
  Pages p{rows, -1};
  if ((rows & (rows - 1)) == 0)
    for (p.shift = 0; (int64_t{1} << p.shift) < rows;) ++p.shift;
  return p;
}

// From operands by slot: `pointers` in the order of slots::Input, numbers as in slots::Size and
// slots::Stride.
template <class Pointer>
HISPARSE_HOST_SIMT ResolveOperands operands_by_slot(const Pointer* pointers, const int64_t* sizes,
                                                    const int64_t* strides) {
  using slots::Input;
  using slots::Size;
  using slots::Stride;
  const int64_t given = sizes[slots::index(Size::kGiven)], wide = sizes[slots::index(Size::kWide)];
  ResolveOperands o{};
#define HISPARSE_IDS(field, input)                                                   \
  o.field.base = (given & slots::bit(input)) != 0                                    \
                     ? (HISPARSE_GLOBAL const int32_t*)pointers[slots::index(input)] \
                     : nullptr;                                                      \
  o.field.row_stride = strides[slots::index(input, Stride::kRow)];                   \
  o.field.column_stride = strides[slots::index(input, Stride::kColumn)];             \
  o.field.wide = (wide & slots::bit(input)) != 0
#define HISPARSE_ROWS(field, type, input)                                                                \
  o.field.base =                                                                                         \
      (given & slots::bit(input)) != 0 ? (HISPARSE_GLOBAL type*)pointers[slots::index(input)] : nullptr; \
  o.field.stride = strides[slots::index(input, Stride::kRow)]
  HISPARSE_IDS(topk_indices, Input::kTopkIndices);
  HISPARSE_IDS(request_ids, Input::kRequestIds);
  HISPARSE_IDS(request_state_indices, Input::kRequestStateIndices);
  HISPARSE_IDS(stable_lengths, Input::kStableLengths);
  HISPARSE_ROWS(source_block_table, const int32_t, Input::kSourceBlockTable);
  HISPARSE_ROWS(hot_block_table, const int32_t, Input::kHotBlockTable);
  HISPARSE_ROWS(resident_block_table, const int32_t, Input::kResidentBlockTable);
  HISPARSE_ROWS(hot_owner, int32_t, Input::kHotOwner);
  HISPARSE_ROWS(lru_slots, int16_t, Input::kLruSlots);
  HISPARSE_ROWS(attention_indices, int32_t, Input::kAttentionIndices);
  HISPARSE_ROWS(refill_host_rows, int32_t, Input::kRefillHostRows);
  HISPARSE_ROWS(refill_hot_rows, int32_t, Input::kRefillHotRows);
  HISPARSE_ROWS(physical_rows, int32_t, Input::kPhysicalRows);
  HISPARSE_ROWS(resolved_host_rows, int32_t, Input::kResolvedHostRows);
  HISPARSE_ROWS(miss_mask, int32_t, Input::kMissMask);
  HISPARSE_ROWS(valid_counts, int32_t, Input::kValidCounts);
  HISPARSE_ROWS(refill_counts, int32_t, Input::kRefillCounts);
  HISPARSE_ROWS(resident_counts, int32_t, Input::kResidentCounts);
  HISPARSE_ROWS(stats, int64_t, Input::kStats);
#undef HISPARSE_IDS
#undef HISPARSE_ROWS
  o.rows = sizes[slots::index(Size::kRows)];
  o.top_k = sizes[slots::index(Size::kTopK)];
  o.num_requests = sizes[slots::index(Size::kNumRequests)];
  o.num_states = sizes[slots::index(Size::kNumStates)];
  o.hot_size = sizes[slots::index(Size::kHotSize)];
  o.source_columns = sizes[slots::index(Size::kSourceColumns)];
  o.resident_columns = sizes[slots::index(Size::kResidentColumns)];
  o.host_rows = sizes[slots::index(Size::kHostRows)];
  o.num_blocks = sizes[slots::index(Size::kNumBlocks)];
  o.union_limit = sizes[slots::index(Size::kUnionLimit)];
  o.attention_block_stride = sizes[slots::index(Size::kAttentionBlockStride)];
  o.prefix = sizes[slots::index(Size::kPrefix)] != 0;
  o.translated = (given & slots::bit(Input::kSourceBlockTable)) == 0;
  o.page = pages(sizes[slots::index(Size::kBlockSize)]);
  o.source_page = pages(sizes[slots::index(Size::kSourceBlockSize)]);
  o.resident_page = pages(sizes[slots::index(Size::kResidentBlockSize)]);
  o.shared = shared_layout(run_capacity(o.rows, o.top_k, o.union_limit), o.hot_size);
  return o;
}

}  // namespace hisparse::simt
