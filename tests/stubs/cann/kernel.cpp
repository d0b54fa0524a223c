// The kernel's entry, called with as many pointers as the definition gives it.
#include <iterator>
#include <stdexcept>
#include <utility>

#include "op_kernel/hisparse_resolve.cpp"

namespace stub {

uint32_t seed = 1, block = 0, blocks = 1;

}  // namespace stub

int32_t hisparse_resolve_shared[hisparse::ascend950::kUserUbBytes / sizeof(int32_t)];

namespace {

template <class... Pointers>
constexpr size_t count(void (*)(Pointers...)) {
  return sizeof...(Pointers);
}

template <size_t... At>
void call(void* const* pointers, std::index_sequence<At...>) {
  hisparse_resolve(static_cast<GM_ADDR>(pointers[At])...);
}

}  // namespace

size_t hisparse_resolve_pointers() { return count(hisparse_resolve); }

void hisparse_resolve_block(void* const* pointers, uint32_t block, uint32_t blocks, uint32_t ub_bytes) {
  stub::block = block;
  stub::blocks = blocks;
  // What tiling did not ask for is not the kernel's: it is compared afterwards.
  std::memset(hisparse_resolve_shared, 0xA5, sizeof(hisparse_resolve_shared));
  call(pointers, std::make_index_sequence<count(hisparse_resolve)>());
  for (size_t i = ub_bytes / sizeof(int32_t); i < std::size(hisparse_resolve_shared); ++i)
    if (hisparse_resolve_shared[i] != static_cast<int32_t>(0xA5A5A5A5))
      throw std::runtime_error("the kernel wrote past the UB that tiling set aside");
}
