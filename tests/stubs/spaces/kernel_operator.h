// What the kernel's entry uses of AscendC, as declarations.
#pragma once

#include "simt_api/asc_simt.h"

#define KERNEL_TASK_TYPE_DEFAULT(type)
#define REGISTER_TILING_DEFAULT(type) using TilingType = type
#define GET_TILING_DATA(name, address) const TilingType name = stub_tiling<TilingType>(address)

using GM_ADDR = __gm__ uint8_t*;

template <class Tiling>
Tiling stub_tiling(GM_ADDR address);

enum Pipe { PIPE_ALL };

namespace AscendC {

int64_t GetBlockIdx();
int64_t GetBlockNum();
template <Pipe>
void PipeBarrier();

}  // namespace AscendC
