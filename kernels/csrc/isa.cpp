#include "isa.h"

#include <cstdlib>
#include <stdexcept>

namespace headstart {

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::scalar: return "scalar";
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
    case Isa::avx512_bf16: return "avx512_bf16";
  }
  return "unknown";
}

Isa isa_from_name(const std::string& name) {
  for (Isa isa : kAllIsas) {
    if (name == isa_name(isa)) return isa;
  }
  throw std::invalid_argument("instruction set '" + name + "' is unknown: use scalar, avx2, avx512 or avx512_bf16");
}

#if defined(__x86_64__)
bool machine_has(Isa isa) {
  // The builtin asks the operating system too whether it saves the wide registers.
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  switch (isa) {
    case Isa::scalar: return true;
    case Isa::avx2: return avx2;
    case Isa::avx512: return avx512;
    // No processor has the one without the other.
    case Isa::avx512_bf16:
      return avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
  }
  return false;
}
#else
bool machine_has(Isa isa) { return isa == Isa::scalar; }
#endif

Isa best_isa() {
  Isa best = Isa::scalar;
  for (Isa isa : kAllIsas) {
    if (machine_has(isa)) best = isa;
  }
  return best;
}

static Isa choose_isa() {
  const char* forced = std::getenv("HEADSTART_ISA");
  if (forced == nullptr || *forced == '\0') return best_isa();
  Isa isa;
  try {
    isa = isa_from_name(forced);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string("HEADSTART_ISA: ") + error.what());
  }
  if (!machine_has(isa)) {
    throw std::invalid_argument(std::string("HEADSTART_ISA: this machine has no ") + forced + "; its best is " +
                                isa_name(best_isa()));
  }
  return isa;
}

Isa active_isa() {
  static const Isa isa = choose_isa();
  return isa;
}

}  // namespace headstart
