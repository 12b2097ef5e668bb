// y = x * w^T (+ bias) on packed weights, shared out over threads.
//
// Row invariance: an output element is one chain of operations over k in ascending order, the same for every m, every
// cut into tasks and every number of threads. Each instruction set has its own chain, so its own last bits.
#pragma once

#include <cstdint>

#include "packed_weight.h"
#include "thread_pool.h"

namespace headstart {

struct KernelTable;

// What one call's tasks share. Rows are x's and y's; columns are the weight's n.
struct GemmCall {
  const PackedWeight* weight = nullptr;
  // [m][ldx]: float for f32 weights, else bf16. For sets without a bf16 dot product a bf16 x is widened first.
  const void* x = nullptr;
  int64_t m = 0;
  int64_t ldx = 0;
  float* y = nullptr;
  int64_t ldy = 0;
  const float* bias = nullptr;  // [n] or null
  // The weight that will be read after this one, or null: its beginning is fetched while this call ends.
  const PackedWeight* next = nullptr;
  const float* block_sums = nullptr;  // q4_1 only: [m][ceil(k / 32)], the sum of x over each block of k
};

// Rows [row_begin, row_end) times column groups [group_begin, group_end).
struct GemmRange {
  int64_t row_begin, row_end, group_begin, group_end;
  const uint8_t* next;  // what the thread will probably read after this, or null
};

// y [m][ldy] float32; x [m][ldx] is bf16 (uint16_t) unless the weight is f32, then float; bias [n] or null.
// y must not overlap x. m == 0 does nothing. Throws std::invalid_argument when ldx < k or ldy < n.
void gemm(ThreadPool& pool, const PackedWeight& w, const void* x, int64_t m, int64_t ldx, float* y, int64_t ldy,
          const float* bias);

// The same on the kernels of `table`.
void gemm_with(const KernelTable& table, ThreadPool& pool, const GemmCall& call);

}  // namespace headstart
