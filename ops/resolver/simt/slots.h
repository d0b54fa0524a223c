// Names of the positions at which resolve's operands travel to a device: through the launcher of the CUDA
// library and through ACLNN. Launchers, definition, tiling, shape inference, kernel entries and adapter
// address them by these names. The order is that of the op's schema; tests/nightly/test_ascend950.py compares
// every file with it.
#pragma once

#include <cstddef>
#include <cstdint>

// Index arithmetic that device code calls too; the device compiler wants to be told.
#if defined(__NPU_ARCH__)
#define HISPARSE_ANYWHERE __aicore__
#else
#define HISPARSE_ANYWHERE
#endif

namespace hisparse::slots {

// Every tensor. Through ACLNN each goes as a flat view of the memory it spans (see Stride), and one of 64
// bits (ids, stats) as pairs of int32, so that one kernel binary serves all combinations.
#define HISPARSE_RESOLVE_INPUTS(X)               \
  X(kTopkIndices, topk_indices)                  \
  X(kRequestIds, request_ids)                    \
  X(kRequestStateIndices, request_state_indices) \
  X(kSourceBlockTable, source_block_table)       \
  X(kHotBlockTable, hot_block_table)             \
  X(kHotOwner, hot_owner)                        \
  X(kLruSlots, lru_slots)                        \
  X(kAttentionIndices, attention_indices)        \
  X(kValidCounts, valid_counts)                  \
  X(kRefillHostRows, refill_host_rows)           \
  X(kRefillHotRows, refill_hot_rows)             \
  X(kRefillCounts, refill_counts)                \
  X(kResidentBlockTable, resident_block_table)   \
  X(kStableLengths, stable_lengths)              \
  X(kPhysicalRows, physical_rows)                \
  X(kResolvedHostRows, resolved_host_rows)       \
  X(kMissMask, miss_mask)                        \
  X(kResidentCounts, resident_counts)            \
  X(kStats, stats)

// What the kernel writes: the same names as inputs, which makes them updates in place. The generated ACLNN
// call knows an update by a name that ends in "Ref", which an optional one would not have; so the optional
// outputs of the schema are required there, and one that was left out is another tensor and a zero in
// Size::kGiven.
#define HISPARSE_RESOLVE_OUTPUTS(X)        \
  X(kHotOwner, hot_owner)                  \
  X(kLruSlots, lru_slots)                  \
  X(kAttentionIndices, attention_indices)  \
  X(kValidCounts, valid_counts)            \
  X(kRefillHostRows, refill_host_rows)     \
  X(kRefillHotRows, refill_hot_rows)       \
  X(kRefillCounts, refill_counts)          \
  X(kPhysicalRows, physical_rows)          \
  X(kResolvedHostRows, resolved_host_rows) \
  X(kMissMask, miss_mask)                  \
  X(kResidentCounts, resident_counts)      \
  X(kStats, stats)

// The numbers of a call.
#define HISPARSE_RESOLVE_SIZES(X)                                                  \
  X(kRows, rows)                                                                   \
  X(kTopK, top_k)                                                                  \
  X(kNumRequests, num_requests) /* rows that every table indexed by request has */ \
  X(kNumStates, num_states)                                                        \
  X(kHotSize, hot_size)                                                            \
  X(kSourceColumns, source_columns)                                                \
  X(kResidentColumns, resident_columns)                                            \
  X(kHostRows, host_rows)                                                          \
  X(kNumBlocks, num_blocks)                                                        \
  X(kBlockSize, block_size)                                                        \
  X(kSourceBlockSize, source_block_size)                                           \
  X(kResidentBlockSize, resident_block_size)                                       \
  X(kAttentionBlockStride, attention_block_stride)                                 \
  X(kUnionLimit, union_limit)                                                      \
  X(kPrefix, prefix)                                                               \
  X(kGiven, given) /* bit n: Input n was given */                                  \
  X(kWide, wide)   /* bit n: Input n holds int64 */

#define HISPARSE_SLOT(slot, name) slot,
enum class Input : size_t { HISPARSE_RESOLVE_INPUTS(HISPARSE_SLOT) kCount };
enum class Output : size_t { HISPARSE_RESOLVE_OUTPUTS(HISPARSE_SLOT) kCount };
enum class Size : size_t { HISPARSE_RESOLVE_SIZES(HISPARSE_SLOT) kCount };
#undef HISPARSE_SLOT

// In elements: the row's and the column's of every Input, 0 where there is none.
enum class Stride : size_t { kRow, kColumn, kCount };

// The ACLNN attributes.
enum class Attr : size_t { kSizes, kStrides, kCount };

HISPARSE_ANYWHERE constexpr size_t index(Input input) { return static_cast<size_t>(input); }
HISPARSE_ANYWHERE constexpr size_t index(Output output) { return static_cast<size_t>(output); }
HISPARSE_ANYWHERE constexpr size_t index(Size size) { return static_cast<size_t>(size); }
HISPARSE_ANYWHERE constexpr size_t index(Attr attr) { return static_cast<size_t>(attr); }
HISPARSE_ANYWHERE constexpr size_t index(Input input, Stride stride) {
  return index(input) * static_cast<size_t>(Stride::kCount) + static_cast<size_t>(stride);
}
constexpr size_t kNumInputs = index(Input::kCount);
constexpr size_t kNumSizes = index(Size::kCount);
constexpr size_t kNumStrides = index(Input::kCount, Stride::kRow);
HISPARSE_ANYWHERE constexpr int64_t bit(Input input) { return int64_t{1} << index(input); }

// The input that an output updates.
constexpr Input updated(Output output) {
#define HISPARSE_SLOT(slot, name) Input::slot,
  constexpr Input kUpdated[] = {HISPARSE_RESOLVE_OUTPUTS(HISPARSE_SLOT)};
#undef HISPARSE_SLOT
  return kUpdated[index(output)];
}

// A call as a C caller makes it.
struct ResolveCall {
  void* pointers[kNumInputs];  // null where an optional one was left out
  int64_t sizes[kNumSizes];
  int64_t strides[kNumStrides];
};

// The names of Input, then of Size, in order, each followed by a blank.
#define HISPARSE_NAME(slot, name) #name " "
inline constexpr char kNames[] = HISPARSE_RESOLVE_INPUTS(HISPARSE_NAME) HISPARSE_RESOLVE_SIZES(HISPARSE_NAME);
#undef HISPARSE_NAME

}  // namespace hisparse::slots
