#include "common/isa.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace hisparse {

const char* isa_name(Isa isa) noexcept {
  switch (isa) {
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
    case Isa::kNeon: return "neon";
    default: return "scalar";
  }
}

bool isa_supported(Isa isa) noexcept {
#if defined(HISPARSE_X86)
  if (isa == Isa::kAvx2)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma");
  if (isa == Isa::kAvx512)
    // VBMI2 (16-bit compress) comes with Ice Lake and Zen 4; older AVX-512 parts use avx2.
    return __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512vbmi") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
#elif defined(HISPARSE_NEON)
  if (isa == Isa::kNeon) return true;
#endif
  return isa == Isa::kScalar;
}

namespace {

bool find_isa(const char* name, Isa* out) noexcept {
  for (Isa isa : kAllIsas) {
    if (std::strcmp(name, isa_name(isa)) == 0 && isa_supported(isa)) {
      *out = isa;
      return true;
    }
  }
  return false;
}

Isa default_isa() noexcept {
  Isa isa = Isa::kScalar;
  // A wrong name is reported by hisparse_ops at import; a library must not print or abort here.
  const char* forced = std::getenv("HISPARSE_CPU_ISA");
  if (forced != nullptr && find_isa(forced, &isa)) return isa;
  for (Isa candidate : kAllIsas)
    if (isa_supported(candidate)) isa = candidate;
  return isa;
}

std::atomic<Isa>& chosen() noexcept {
  static std::atomic<Isa> isa{default_isa()};
  return isa;
}

}  // namespace

Isa current_isa() noexcept { return chosen().load(std::memory_order_relaxed); }

bool set_isa(const char* name) noexcept {
  Isa isa;
  if (!find_isa(name, &isa)) return false;
  chosen().store(isa, std::memory_order_relaxed);
  return true;
}

}  // namespace hisparse
