// What the hardware can do at most, for the benchmarks: reading memory, and multiplying in registers.
#pragma once

#include "gemm_impl.h"

namespace headstart {
namespace HEADSTART_ISA_NAMESPACE {

static constexpr int kLimitChains = 12;  // enough to hide the latency of an addition

// Reads num_bytes (a multiple of 1024) once. The result depends on all of them, so that nothing is left out.
static float read_memory(const uint8_t* bytes, int64_t num_bytes) {
  constexpr int64_t kStep = 8 * kLanes * 4;
  vi sum[8];
  for (vi& part : sum) part = set1_int(0);
  for (int64_t at = 0; at + kStep <= num_bytes; at += kStep) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) sum[i] = add_int(sum[i], load_int(bytes + at + i * kLanes * 4));
  }
  float total = 0;
  for (vi part : sum) total += reduce_add(to_float(part));
  return total;
}

// Multiplies and adds in registers, the way gemm does on bf16 weights. Gives the number of floating-point operations.
static int64_t multiply_registers(int64_t num_rounds, float* result) {
  vf sum[kLimitChains];
  for (vf& part : sum) part = zero();
#if defined(__AVX512BF16__)
  __m512i factor = _mm512_set1_epi32(0x3f803f80);
  constexpr int64_t kOperations = 4 * kLanes;
#else
  vf factor = set1(1.0f);
  constexpr int64_t kOperations = 2 * kLanes;
#endif
  for (int64_t round = 0; round < num_rounds; ++round) {
#pragma GCC unroll 12
    for (vf& part : sum) {
#if defined(__AVX512BF16__)
      part = dot_pairs(part, 0x3f803f80u, factor);
#else
      part = fma(factor, factor, part);
#endif
    }
    asm volatile("" : "+v"(factor));  // a new value for all the compiler knows: the work cannot be moved out
  }
  float total = 0;
  for (vf part : sum) total += reduce_add(part);
  *result = total;
  return num_rounds * kLimitChains * kOperations;
}

}  // namespace HEADSTART_ISA_NAMESPACE
}  // namespace headstart
