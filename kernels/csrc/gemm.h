// y = x * w^T (+ bias) on packed weights, or that added to y, shared out over threads.
//
// Row invariance: an output element is one chain of operations over k in ascending order, the same for every m, every
// cut into tasks and every number of threads. Each instruction set has its own chain, so its own last bits.
#pragma once

#include <cstdint>
#include <vector>

#include "packed_weight.h"
#include "thread_pool.h"

namespace headstart {

struct KernelTable;

// The x of a product with blocks as integers: row r is scales[r] * q. A block of a row is one line of the cache, and the
// rows of a tile are neighbours. An odd number of lines between blocks keeps them apart in the cache.
struct QuantisedX {
  int64_t num_blocks = 0, ld = 0;
  int16_t* q = nullptr;         // [num_blocks][ld][32]
  float* scales = nullptr;      // [m]
  float* block_sums = nullptr;  // [num_blocks][ld], of q

  int16_t* block(int64_t b, int64_t row) const { return q + (b * ld + row) * kQuantBlock; }
  float* sums(int64_t b, int64_t row) const { return block_sums + b * ld + row; }
};

// The memory of one QuantisedX. It only grows: fresh memory for every product costs more in page faults than filling it.
class QuantisedBuffer {
 public:
  // For m rows of k; k is a multiple of 32. Ends what it gave before.
  QuantisedX take(int64_t m, int64_t k);

 private:
  std::vector<int16_t> quants_;
  std::vector<float> scales_, sums_;
};

// What one call's tasks share. Rows are x's and y's; columns are the weight's n.
struct GemmCall {
  const PackedWeight* weight = nullptr;
  // [m][ldx]: bf16 if the weight takes_bf16(), else float. Sets without a bf16 dot product widen a bf16 x first.
  const void* x = nullptr;
  int64_t m = 0;
  int64_t ldx = 0;
  float* y = nullptr;
  int64_t ldy = 0;
  const float* bias = nullptr;  // [n] or null
  bool adds = false;            // y += instead of y =
  // Room for m * k where bf16 must be widened first; gemm takes memory of its own where it is null.
  float* widened = nullptr;
  // The weight that will be read after this one, or null: its beginning is fetched while this call ends.
  const PackedWeight* next = nullptr;
  QuantisedX quantised;  // of x, for blocks only; gemm makes it from x where it is empty
};

// Rows [row_begin, row_end) times column groups [group_begin, group_end).
struct GemmRange {
  int64_t row_begin, row_end, group_begin, group_end;
  const uint8_t* next;  // what the thread will probably read after this, or null
};

// y [m][ldy] float32; x [m][ldx] is bf16 (uint16_t) if the weight takes_bf16(), else float; bias [n] or null.
// y must not overlap x. m == 0 does nothing. Throws std::invalid_argument when ldx < k or ldy < n.
void gemm(ThreadPool& pool, const PackedWeight& w, const void* x, int64_t m, int64_t ldx, float* y, int64_t ldy,
          const float* bias);

// The same on the kernels of `table`.
void gemm_with(const KernelTable& table, ThreadPool& pool, const GemmCall& call);

}  // namespace headstart
