// The one place where an instruction set's kernels go into its table.
#pragma once

#include "activation_impl.h"
#include "attention_impl.h"
#include "gemm_impl.h"
#include "kernel_table.h"
#include "kv_write_impl.h"
#include "limits_impl.h"
#include "norm_impl.h"
#include "rope_impl.h"

namespace headstart {
namespace HEADSTART_ISA_NAMESPACE {

static constexpr KernelTable make_table(Isa isa) {
  KernelTable table{};
  table.isa = isa;
  table.has_bf16_dot = kHasBf16Dot;
  table.gemm_tile_rows = kMaxTileRows;
  table.gemm = gemm_range;
  table.widen_bf16 = widen_bf16;
  table.quantise_row = quantise_row;
  table.read_memory = read_memory;
  table.multiply_registers = multiply_registers;
  table.attend_unit = attend_unit;
  table.merge_states = merge_states;
  table.write_kv = write_kv;
  table.rms_norm = rms_norm;
  table.rotate = rotate;
  table.silu_mul = silu_mul;
  return table;
}

}  // namespace HEADSTART_ISA_NAMESPACE
}  // namespace headstart
