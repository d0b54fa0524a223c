// AscendC as far as the kernel's entry uses it, over the emulation of the SIMT layer.
#pragma once

#include <cstdint>
#include <cstring>

#include "resolver/simt/emulator.h"

#define __gm__
#define __ubuf__
#define __aicore__
#define __global__
#define __simt_vf__
#define __launch_bounds__(threads)
#define KERNEL_TASK_TYPE_DEFAULT(type)
#define REGISTER_TILING_DEFAULT(type) using TilingType = type
#define GET_TILING_DATA(name, address) \
  TilingType name;                     \
  std::memcpy(&name, address, sizeof(name))

using GM_ADDR = uint8_t*;

struct dim3 {
  uint32_t x;
  explicit dim3(uint32_t threads) : x(threads) {}
};

namespace stub {

extern uint32_t seed;   // of the order of threads
extern uint32_t block;  // that runs now
extern uint32_t blocks;

}  // namespace stub

enum Pipe { PIPE_ALL };

namespace AscendC {

inline uint32_t GetBlockIdx() { return stub::block; }
inline uint32_t GetBlockNum() { return stub::blocks; }
template <Pipe>
void PipeBarrier() {}

}  // namespace AscendC

template <auto function, class... Args>
void asc_vf_call(dim3 threads, Args... args) {
  hisparse::simt::emulator::run_block({threads.x, stub::seed}, [&] { function(args...); });
}
