// Which instruction set serves: found by cpuid, or forced through HEADSTART_ISA.
// Knows nothing of kernels. Owns no state.
#pragma once

#include <string>

namespace headstart {

enum class Isa { scalar, avx2, avx512, avx512_bf16 };

inline constexpr Isa kAllIsas[] = {Isa::scalar, Isa::avx2, Isa::avx512, Isa::avx512_bf16};

const char* isa_name(Isa isa);

// Throws std::invalid_argument for an unknown name.
Isa isa_from_name(const std::string& name);

bool machine_has(Isa isa);

// The widest set that this machine has.
Isa best_isa();

// HEADSTART_ISA when it is set, else the best. Read once per process. Throws std::invalid_argument, which names the
// variable, for an unknown name or for a set that the machine lacks.
Isa active_isa();

}  // namespace headstart
