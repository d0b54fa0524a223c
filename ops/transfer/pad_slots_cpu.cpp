#include <torch/csrc/stable/library.h>

#include "common/check.h"
#include "transfer/pad_slots.h"

namespace hisparse {
namespace {

constexpr const char* kOp = "pad_slots";

template <class From>
void pad(const From* slots, int64_t stride, int64_t count, const Tensor& out, bool wide_out) {
  const int64_t n = out.size(0), out_stride = out.stride(0);
  if (wide_out) pad_slots(slots, stride, count, data<int64_t>(out), out_stride, n);
  else pad_slots(slots, stride, count, data<int32_t>(out), out_stride, n);
}

void pad_slots_cpu(const Tensor& slots, const Tensor& valid_count, const Tensor& out) {
  const Ids from = ids(kOp, "slots", slots, 1);
  const Ids count = ids(kOp, "valid_count", valid_count, 1);
  check_size(kOp, "valid_count", valid_count, 0, "length", 1);
  const Ids to = ids(kOp, "out", out, 1);
  check_size(kOp, "out", out, 0, "length", slots.size(0));
  check_distinct(kOp, "out", out);
  // In place is harmless: a slot is read before its own place is written.
  const bool in_place = to.base == from.base && to.row_stride == from.row_stride && to.wide == from.wide;
  if (!in_place) check_disjoint(kOp, "out", bytes_of(to), "slots", bytes_of(from));
  if (from.wide) pad(data<int64_t>(slots), from.row_stride, count(0), out, to.wide);
  else pad(data<int32_t>(slots), from.row_stride, count(0), out, to.wide);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(hisparse, CPU, m) { m.impl("pad_slots", TORCH_BOX(&pad_slots_cpu)); }

}  // namespace hisparse
