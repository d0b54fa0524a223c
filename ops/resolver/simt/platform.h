// What a SIMT machine gives to a kernel body, by one set of names: thread index, barrier, ballot, atomics,
// memory spaces. CUDA, Ascend 950 (AscendC), or the emulation on a host (emulator.h).
#pragma once

#include <cstdint>

#if defined(__CUDACC__)

#define HISPARSE_SIMT __device__ __forceinline__
#define HISPARSE_HOST_SIMT inline  // operands are made on the host
#define HISPARSE_GLOBAL
#define HISPARSE_SHARED

namespace hisparse::simt {

constexpr uint32_t kWarp = 32;

HISPARSE_SIMT uint32_t thread() { return threadIdx.x; }
HISPARSE_SIMT uint32_t threads() { return blockDim.x; }
HISPARSE_SIMT void barrier() { __syncthreads(); }
HISPARSE_SIMT uint64_t ballot(bool flag) { return __ballot_sync(0xFFFFFFFFu, flag); }
HISPARSE_SIMT uint32_t count_bits(uint64_t mask) { return __popc(static_cast<uint32_t>(mask)); }
HISPARSE_SIMT int32_t shared_cas(int32_t* at, int32_t expected, int32_t value) {
  return atomicCAS(at, expected, value);
}
HISPARSE_SIMT void shared_min(int32_t* at, int32_t value) { atomicMin(at, value); }
HISPARSE_SIMT void shared_add(int32_t* at, int32_t value) { atomicAdd(at, value); }
HISPARSE_SIMT uint32_t shared_or(uint32_t* at, uint32_t value) { return atomicOr(at, value); }
HISPARSE_SIMT void global_add(int64_t* at, int64_t value) {
  atomicAdd(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(value));
}

}  // namespace hisparse::simt

#elif defined(__NPU_ARCH__)

#include "simt_api/asc_simt.h"

#define HISPARSE_SIMT __simt_callee__ inline
#define HISPARSE_HOST_SIMT __aicore__ inline
#define HISPARSE_GLOBAL __gm__
#define HISPARSE_SHARED __ubuf__

namespace hisparse::simt {

constexpr uint32_t kWarp = 32;

HISPARSE_SIMT uint32_t thread() { return threadIdx.x; }
HISPARSE_SIMT uint32_t threads() { return blockDim.x; }
// Also of what the block's threads wrote to global memory.
HISPARSE_SIMT void barrier() {
  asc_threadfence_block();
  asc_syncthreads();
}
HISPARSE_SIMT uint64_t ballot(bool flag) { return asc_ballot(flag); }
HISPARSE_SIMT uint32_t count_bits(uint64_t mask) { return __popc(static_cast<uint32_t>(mask)); }
HISPARSE_SIMT int32_t shared_cas(__ubuf__ int32_t* at, int32_t expected, int32_t value) {
  return asc_atomic_cas(at, expected, value);
}
HISPARSE_SIMT void shared_min(__ubuf__ int32_t* at, int32_t value) { asc_atomic_min(at, value); }
HISPARSE_SIMT void shared_add(__ubuf__ int32_t* at, int32_t value) { asc_atomic_add(at, value); }
HISPARSE_SIMT uint32_t shared_or(__ubuf__ uint32_t* at, uint32_t value) { return asc_atomic_or(at, value); }
HISPARSE_SIMT void global_add(__gm__ int64_t* at, int64_t value) { asc_atomic_add(at, value); }

}  // namespace hisparse::simt

#else

#include "resolver/simt/emulator.h"

#endif
