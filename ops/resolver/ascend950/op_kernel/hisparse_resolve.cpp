// The kernel's entry on an Ascend 950: operands by position to operands by name, then the portable body on
// the SIMT units of one AIV a block.
#include "kernel_operator.h"  // first: it defines the qualifiers

#include "hisparse_resolve_tiling.h"
#include "resolver/simt/resolve_block.h"

extern __ubuf__ int32_t hisparse_resolve_shared[];

__simt_vf__ __launch_bounds__(hisparse::ascend950::kThreads) inline void hisparse_resolve_simt(
    hisparse::simt::ResolveOperands operands, __ubuf__ int32_t* shared, int64_t block, int64_t blocks) {
  hisparse::simt::Block(operands, shared).work(block, blocks);
}

extern "C" __global__ __aicore__ void hisparse_resolve(
    GM_ADDR topk_indices, GM_ADDR request_ids, GM_ADDR request_state_indices, GM_ADDR source_block_table,
    GM_ADDR hot_block_table, GM_ADDR hot_owner, GM_ADDR lru_slots, GM_ADDR attention_indices,
    GM_ADDR valid_counts, GM_ADDR refill_host_rows, GM_ADDR refill_hot_rows, GM_ADDR refill_counts,
    GM_ADDR resident_block_table, GM_ADDR stable_lengths, GM_ADDR physical_rows, GM_ADDR resolved_host_rows,
    GM_ADDR miss_mask, GM_ADDR resident_counts, GM_ADDR stats, GM_ADDR hot_owner_out, GM_ADDR lru_slots_out,
    GM_ADDR attention_indices_out, GM_ADDR valid_counts_out, GM_ADDR refill_host_rows_out,
    GM_ADDR refill_hot_rows_out, GM_ADDR refill_counts_out, GM_ADDR physical_rows_out,
    GM_ADDR resolved_host_rows_out, GM_ADDR miss_mask_out, GM_ADDR resident_counts_out, GM_ADDR stats_out,
    GM_ADDR workspace, GM_ADDR tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  REGISTER_TILING_DEFAULT(HisparseResolveTiling);
  GET_TILING_DATA(call, tiling);
  // What is written is read first, so both come from the outputs, which are the inputs' memory.
  const GM_ADDR by_slot[] = {topk_indices,
                             request_ids,
                             request_state_indices,
                             source_block_table,
                             hot_block_table,
                             hot_owner_out,
                             lru_slots_out,
                             attention_indices_out,
                             valid_counts_out,
                             refill_host_rows_out,
                             refill_hot_rows_out,
                             refill_counts_out,
                             resident_block_table,
                             stable_lengths,
                             physical_rows_out,
                             resolved_host_rows_out,
                             miss_mask_out,
                             resident_counts_out,
                             stats_out};
  static_assert(sizeof(by_slot) / sizeof(*by_slot) == hisparse::slots::kNumInputs);
  const hisparse::simt::ResolveOperands operands =
      hisparse::simt::operands_by_slot(by_slot, call.sizes, call.strides);
  asc_vf_call<hisparse_resolve_simt>(dim3(hisparse::ascend950::kThreads), operands, hisparse_resolve_shared,
                                     static_cast<int64_t>(AscendC::GetBlockIdx()),
                                     static_cast<int64_t>(AscendC::GetBlockNum()));
  AscendC::PipeBarrier<PIPE_ALL>();
}
