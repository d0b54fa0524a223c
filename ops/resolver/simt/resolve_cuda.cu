// The CUDA library of the resolver: a C interface, no torch. Loading it needs no driver; a launch does.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>

#include "resolver/simt/resolve_block.h"

#define HISPARSE_EXPORT extern "C" __attribute__((visibility("default")))

namespace hisparse::simt {
namespace {

extern __shared__ int32_t shared_memory[];

__global__ void __launch_bounds__(kMaxThreads)
    resolve_kernel(const __grid_constant__ ResolveOperands operands) {
  Block(operands, shared_memory).work(blockIdx.x, gridDim.x);
}

// Enough for any batch: a block takes every n-th row.
constexpr int64_t kMostBlocks = 1 << 16;

cudaError_t launch(const slots::ResolveCall& call, cudaStream_t stream) {
  const ResolveOperands operands = operands_by_slot(call.pointers, call.sizes, call.strides);
  if (operands.rows == 0) return cudaSuccess;
  const int bytes = static_cast<int>(4 * operands.shared.words);
  const cudaError_t room =
      cudaFuncSetAttribute(resolve_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (room != cudaSuccess) return room;
  const unsigned blocks = static_cast<unsigned>(std::min(operands.rows, kMostBlocks));
  resolve_kernel<<<blocks, kMaxThreads, bytes, stream>>>(operands);
  return cudaGetLastError();
}

}  // namespace
}  // namespace hisparse::simt

// The names of the slots, in order; a caller compares them with its own.
HISPARSE_EXPORT const char* hisparse_resolve_slots() { return hisparse::slots::kNames; }

// Size and offsets of ResolveCall.
HISPARSE_EXPORT void hisparse_resolve_layout(int64_t* layout) {
  using hisparse::slots::ResolveCall;
  layout[0] = sizeof(ResolveCall);
  layout[1] = offsetof(ResolveCall, pointers);
  layout[2] = offsetof(ResolveCall, sizes);
  layout[3] = offsetof(ResolveCall, strides);
}

HISPARSE_EXPORT const char* hisparse_cuda_targets() { return HISPARSE_CUDA_TARGETS; }

HISPARSE_EXPORT const char* hisparse_cuda_error(int code) {
  return cudaGetErrorString(static_cast<cudaError_t>(code));
}

// Bytes of shared memory a block may have on the current device; negative: the error, as its code below zero.
HISPARSE_EXPORT int64_t hisparse_cuda_shared_bytes(int device) {
  int bytes = 0;
  const cudaError_t error = cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return error == cudaSuccess ? bytes : -static_cast<int64_t>(error);
}

// Puts one call on the stream of the current device. Returns CUDA's code, 0 for success. May be captured.
HISPARSE_EXPORT int hisparse_resolve_cuda(const hisparse::slots::ResolveCall* call, void* stream) {
  return hisparse::simt::launch(*call, static_cast<cudaStream_t>(stream));
}
