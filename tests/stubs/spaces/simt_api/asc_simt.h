// AscendC's SIMT functions as declarations with real address spaces, for a compile-only check: a pointer to global
// memory where shared memory is meant, or a 64-bit atomic on shared memory, is an error here as on the device.
#pragma once

#include <cstdint>

#define __gm__ __attribute__((address_space(1)))
#define __ubuf__ __attribute__((address_space(3)))
#define __aicore__
#define __global__
#define __simt_vf__
#define __simt_callee__
#define __launch_bounds__(threads)

struct dim3 {
  uint32_t x;
  constexpr explicit dim3(uint32_t threads) : x(threads) {}
};

extern const dim3 threadIdx, blockDim;

void asc_syncthreads();
void asc_threadfence_block();
uint32_t asc_ballot(int32_t predicate);
int __popc(unsigned bits);
int32_t asc_atomic_cas(__ubuf__ int32_t* at, int32_t expected, int32_t value);
int32_t asc_atomic_min(__ubuf__ int32_t* at, int32_t value);
int32_t asc_atomic_add(__ubuf__ int32_t* at, int32_t value);
uint32_t asc_atomic_or(__ubuf__ uint32_t* at, uint32_t value);
int64_t asc_atomic_add(__gm__ int64_t* at, int64_t value);

template <auto function, class... Args>
void asc_vf_call(dim3, Args&&... args) {
  function(args...);
}
