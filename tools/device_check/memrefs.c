/* What lowered linalg calls. A memref's descriptor holds the allocation, the aligned start, an offset, sizes and strides. */
#include <stdint.h>
#include <string.h>

typedef struct {
  int64_t rank;
  int64_t *words;
} Unranked;

static void copy(int64_t rank, int64_t item, const int64_t *sizes, const int64_t *from_strides,
                 const int64_t *to_strides, const char *from, char *to) {
  if (rank == 0) {
    memcpy(to, from, (size_t)item);
    return;
  }
  for (int64_t i = 0; i < sizes[0]; ++i)
    copy(rank - 1, item, sizes + 1, from_strides + 1, to_strides + 1, from + i * from_strides[0] * item,
         to + i * to_strides[0] * item);
}

void memrefCopy(int64_t item, const Unranked *from, const Unranked *to) {
  const int64_t rank = from->rank, *f = from->words, *t = to->words;
  copy(rank, item, f + 3, f + 3 + rank, t + 3 + rank, (const char *)f[1] + f[2] * item,
       (char *)t[1] + t[2] * item);
}

typedef struct {
  void *allocated, *aligned;
  int64_t offset, size, stride;
} Memref;

/* Memory at an address that a kernel read from a table. */
static Memref at_address(int64_t address) {
  Memref memref = {(void *)address, (void *)address, 0, INT64_MAX, 1};
  return memref;
}

Memref at_address_i8(int64_t address) { return at_address(address); }
Memref at_address_i16(int64_t address) { return at_address(address); }
Memref at_address_i32(int64_t address) { return at_address(address); }
