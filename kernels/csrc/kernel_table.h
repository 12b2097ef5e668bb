// The kernels of one instruction set, as function pointers. Each kernels_*.cpp fills one table from the same headers.
//
// To add a kernel: an entry here, its code in a *_impl.h inside HEADSTART_ISA_NAMESPACE, a line in table_impl.h.
#pragma once

#include <cstdint>

#include "attention.h"
#include "gemm.h"
#include "isa.h"

namespace headstart {

struct KernelTable {
  Isa isa;

  // Whether bf16 weights take a bf16 x as it is; else gemm widens x first.
  bool has_bf16_dot;
  // The rows that gemm works on at once, at most.
  int64_t gemm_tile_rows;
  void (*gemm)(const GemmCall& call, GemmRange range);
  void (*widen_bf16)(const uint16_t* from, float* to, int64_t count);
  // One row of x, [num_blocks * 32], to its places in `to`.
  void (*quantise_row)(const float* x, const QuantisedX& to, int64_t row);

  // The limits that benchmarks compare with: see limits_impl.h.
  float (*read_memory)(const uint8_t* bytes, int64_t num_bytes);
  int64_t (*multiply_registers)(int64_t num_rounds, float* result);

  // One unit of a plan, while the beginning of `next` is fetched unless that is null; the output of a span's tokens and
  // one K/V head from the states that units left.
  void (*attend_unit)(const AttentionCall& call, const AttentionUnit& unit, const QuerySpan* spans,
                      const AttentionUnit* next, AttentionBuffers buffers);
  void (*merge_states)(const AttentionCall& call, const QuerySpan& span, int64_t kv_head, AttentionBuffers buffers);
  // K and V of one token, [num_kv_heads * head_dim], to page * page_size + offset; slot -1: nothing is written.
  void (*write_kv)(const KvLayer& kv, const float* k, const float* v, int64_t slot);

  // All of one row. `out` is bf16 or float32.
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t count, void* out, bool is_out_bf16);
  // Turns num_heads heads of one token in place; cos and sin are the position's lines, [head_dim / 2].
  void (*rotate)(float* x, const float* cos, const float* sin, int64_t num_heads, int64_t head_dim);
  void (*silu_mul)(const float* gate, const float* up, int64_t count, void* out, bool is_out_bf16);
};

// The table of active_isa(). Throws what active_isa throws.
const KernelTable& kernel_table();

// Throws std::invalid_argument for a set that this machine or this build lacks.
const KernelTable& kernel_table(Isa isa);

}  // namespace headstart
