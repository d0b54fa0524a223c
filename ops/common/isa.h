// Which instruction set the CPU kernels use: chosen once for this machine, or forced.
#pragma once

#if defined(__x86_64__)
// GCC 12 finds its own AVX-512 header at fault (gcc.gnu.org/PR105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#define HISPARSE_X86 1
#define HISPARSE_TARGET_AVX2 __attribute__((target("avx2,bmi,bmi2,f16c,fma")))
#define HISPARSE_TARGET_AVX512 \
  __attribute__((              \
      target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx512vbmi,avx512vbmi2,bmi,bmi2,f16c,fma")))
#elif defined(__aarch64__)
#include <arm_neon.h>
#define HISPARSE_NEON 1
#endif

namespace hisparse {

enum class Isa { kScalar, kAvx2, kAvx512, kNeon };

inline constexpr Isa kAllIsas[] = {Isa::kScalar, Isa::kNeon, Isa::kAvx2, Isa::kAvx512};

const char* isa_name(Isa isa) noexcept;
bool isa_supported(Isa isa) noexcept;

// The widest supported set, or the one named by HISPARSE_CPU_ISA or set_isa().
Isa current_isa() noexcept;

// False (and nothing changes) when the name is unknown or this machine lacks the set.
bool set_isa(const char* name) noexcept;

}  // namespace hisparse
