// The one place where an instruction set's kernels go into its table.
#pragma once

#include "gemm_impl.h"
#include "kernel_table.h"

namespace headstart {
namespace HEADSTART_ISA_NAMESPACE {

static constexpr KernelTable make_table(Isa isa) {
  KernelTable table{};
  table.isa = isa;
  table.has_bf16_dot = kHasBf16Dot;
  table.gemm_tile_groups = kTileGroups;
  table.gemm = gemm_range;
  table.widen_bf16 = widen_bf16;
  return table;
}

}  // namespace HEADSTART_ISA_NAMESPACE
}  // namespace headstart
