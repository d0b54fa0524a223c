// A SIMT machine on a host, for tests: one block at a time, one fiber per thread. Fibers change at barriers
// and ballots only, in an order that a seed shuffles. A barrier or ballot that not all threads reach stops
// the block.
#pragma once

#include <cstdint>
#include <functional>

#define HISPARSE_SIMT inline
#define HISPARSE_HOST_SIMT inline
#define HISPARSE_GLOBAL
#define HISPARSE_SHARED

#ifndef HISPARSE_EMULATED_WARP
#define HISPARSE_EMULATED_WARP 32
#endif

namespace hisparse::simt {

constexpr uint32_t kWarp = HISPARSE_EMULATED_WARP;

namespace emulator {

struct Launch {
  uint32_t threads = 256;
  uint32_t seed = 0;  // 0: threads run in order
};

// Runs `kernel` as one block. Throws std::runtime_error where threads diverge.
void run_block(const Launch& launch, const std::function<void()>& kernel);

uint32_t thread();
uint32_t threads();
void barrier();
uint64_t ballot(bool flag);

}  // namespace emulator

inline uint32_t thread() { return emulator::thread(); }
inline uint32_t threads() { return emulator::threads(); }
inline void barrier() { emulator::barrier(); }
inline uint64_t ballot(bool flag) { return emulator::ballot(flag); }
inline uint32_t count_bits(uint64_t mask) { return static_cast<uint32_t>(__builtin_popcountll(mask)); }
// Real atomics, for the back end whose threads run side by side.
inline int32_t shared_cas(int32_t* at, int32_t expected, int32_t value) {
  __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
inline void shared_min(int32_t* at, int32_t value) {
  int32_t before = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (value < before &&
         !__atomic_compare_exchange_n(at, &before, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}
inline void shared_add(int32_t* at, int32_t value) { __atomic_fetch_add(at, value, __ATOMIC_RELAXED); }
inline uint32_t shared_or(uint32_t* at, uint32_t value) {
  return __atomic_fetch_or(at, value, __ATOMIC_RELAXED);
}
inline void global_add(int64_t* at, int64_t value) { __atomic_fetch_add(at, value, __ATOMIC_RELAXED); }

}  // namespace hisparse::simt
