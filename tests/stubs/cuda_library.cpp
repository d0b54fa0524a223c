// The C interface of the CUDA library without CUDA: it keeps the call, and refuses the launch as a machine without a
// driver does, or does not.
#include <cstring>

#include "resolver/simt/slots.h"

using namespace hisparse::slots;

namespace {

ResolveCall last;
void* last_stream = nullptr;
int answer = 0;

}  // namespace

extern "C" {

const char* hisparse_resolve_slots() { return kNames; }

void hisparse_resolve_layout(int64_t* layout) {
  layout[0] = sizeof(ResolveCall);
  layout[1] = offsetof(ResolveCall, pointers);
  layout[2] = offsetof(ResolveCall, sizes);
  layout[3] = offsetof(ResolveCall, strides);
}

const char* hisparse_cuda_error(int code) { return code == 35 ? "no driver" : "no error"; }

int64_t hisparse_cuda_shared_bytes(int) { return 227 << 10; }

const char* hisparse_cuda_targets() { return "nothing"; }

int hisparse_resolve_cuda(const ResolveCall* call, void* stream) {
  std::memcpy(&last, call, sizeof(last));
  last_stream = stream;
  return answer;
}

// For tests.
void answer_with(int code) { answer = code; }
void* stream() { return last_stream; }
void* lru_slots() { return last.pointers[index(Input::kLruSlots)]; }
void* stats() { return last.pointers[index(Input::kStats)]; }
int64_t hot_size() { return last.sizes[index(Size::kHotSize)]; }
int64_t wide() { return last.sizes[index(Size::kWide)]; }
int64_t topk_column_stride() { return last.strides[index(Input::kTopkIndices, Stride::kColumn)]; }
int64_t stats_stride() { return last.strides[index(Input::kStats, Stride::kRow)]; }
}
