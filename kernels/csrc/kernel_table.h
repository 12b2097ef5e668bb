// The kernels of one instruction set, as function pointers. Each kernels_*.cpp fills one table from the same headers.
//
// To add a kernel: an entry here, its code in a *_impl.h inside HEADSTART_ISA_NAMESPACE, a line in table_impl.h.
#pragma once

#include <cstdint>

#include "gemm.h"
#include "isa.h"

namespace headstart {

struct KernelTable {
  Isa isa;

  // Whether bf16 weights take a bf16 x as it is; else gemm widens x first.
  bool has_bf16_dot;
  // Column groups that a task should be a multiple of.
  int64_t gemm_tile_groups;
  void (*gemm)(const GemmCall& call, GemmRange range);
  void (*widen_bf16)(const uint16_t* from, float* to, int64_t count);
};

// The table of active_isa(). Throws what active_isa throws.
const KernelTable& kernel_table();

// Throws std::invalid_argument for a set that this machine or this build lacks.
const KernelTable& kernel_table(Isa isa);

}  // namespace headstart
