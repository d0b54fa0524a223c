// The C interface of the CUDA library over the emulation: the same call, the same operands, the same body.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "resolver/simt/resolve_block.h"

using namespace hisparse;

namespace {

simt::emulator::Launch shape;
int64_t num_blocks = 3;
std::string error;

}  // namespace

extern "C" {

const char* hisparse_resolve_slots() { return slots::kNames; }

void hisparse_resolve_layout(int64_t* layout) {
  layout[0] = sizeof(slots::ResolveCall);
  layout[1] = offsetof(slots::ResolveCall, pointers);
  layout[2] = offsetof(slots::ResolveCall, sizes);
  layout[3] = offsetof(slots::ResolveCall, strides);
}

const char* hisparse_cuda_error(int) { return error.c_str(); }
int64_t hisparse_cuda_shared_bytes(int) { return 227 << 10; }

const char* hisparse_cuda_targets() { return "the emulation"; }

void emulate(uint32_t threads, uint32_t seed, int64_t blocks) {
  shape = {threads, seed};
  num_blocks = blocks;
}

int64_t emulated_warp() { return simt::kWarp; }

int64_t hisparse_resolve_shared_bytes(int64_t rows, int64_t top_k, int64_t union_limit, int64_t hot_size) {
  return simt::shared_bytes(rows, top_k, union_limit, hot_size);
}

int hisparse_resolve_cuda(const slots::ResolveCall* call, void*) {
  const simt::ResolveOperands operands = simt::operands_by_slot(call->pointers, call->sizes, call->strides);
  const size_t words = static_cast<size_t>(operands.shared.words);
  try {
    for (int64_t block = 0; block < num_blocks; ++block) {
      // Shared memory is what the last block left, and ends where the sanitizer can see it.
      const std::unique_ptr<int32_t[]> shared(new int32_t[words]);
      std::memset(shared.get(), 0xA5, words * sizeof(int32_t));
      simt::emulator::run_block(shape, [&] { simt::Block(operands, shared.get()).work(block, num_blocks); });
    }
  } catch (const std::exception& e) {
    error = e.what();
    return 1;
  }
  return 0;
}
}
