#include "gemm.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernel_table.h"

namespace headstart {

namespace {

// A task's rows of x stay in the L2 cache while its columns pass by.
constexpr int64_t kTaskRows = 96;

// The tasks: row parts times column parts, as even as they can be. There are as many column parts as threads, so that
// a thread streams one long run of the weight; a small matrix is done before finer parts could balance anything.
struct TaskGrid {
  int64_t m, num_groups, row_parts, group_parts, tile_rows;

  int64_t size() const { return row_parts * group_parts; }

  GemmRange range(int64_t task, const PackedWeight* next) const {
    const int64_t row = task / group_parts, part = task % group_parts;
    const uint8_t* after = nullptr;
    if (next != nullptr && row + 1 == row_parts) after = next->group(part * next->num_groups() / group_parts);
    return {row_start(row), row_start(row + 1), part * num_groups / group_parts,
            (part + 1) * num_groups / group_parts, after};
  }

  // Parts end where tiles do: a smaller tile does less with the same weights.
  int64_t row_start(int64_t row) const {
    const int64_t num_tiles = (m + tile_rows - 1) / tile_rows;
    return std::min(m, row * num_tiles / row_parts * tile_rows);
  }
};

void check(const GemmCall& call) {
  const PackedWeight& w = *call.weight;
  if (call.m < 0) throw std::invalid_argument("m: must not be negative");
  if (call.ldx < w.k) {
    throw std::invalid_argument("x: its rows have " + std::to_string(call.ldx) + " entries, the weight needs " +
                                std::to_string(w.k));
  }
  if (call.ldy < w.n) {
    throw std::invalid_argument("y: its rows have " + std::to_string(call.ldy) + " entries, the weight gives " +
                                std::to_string(w.n));
  }
}

// x as floats [m][k]. The memory is the calling thread's, good until its next call: fresh memory for every product
// costs more in page faults than the widening.
const float* widen(const KernelTable& table, ThreadPool& pool, const GemmCall& call) {
  static thread_local std::vector<float> widened;
  const int64_t k = call.weight->k;
  if (static_cast<int64_t>(widened.size()) < call.m * k) widened.resize(call.m * k);
  float* to = widened.data();
  const uint16_t* x = static_cast<const uint16_t*>(call.x);
  const int64_t num_parts = call.m < kTaskRows / 8 ? 1 : pool.size();
  pool.run(num_parts, [&](int64_t part, int) {
    for (int64_t row = part * call.m / num_parts; row < (part + 1) * call.m / num_parts; ++row) {
      table.widen_bf16(x + row * call.ldx, to + row * k, k);
    }
  });
  return to;
}

const float* sum_blocks(const KernelTable& table, const GemmCall& call) {
  static thread_local std::vector<float> sums;  // as in widen
  const int64_t num_blocks = call.weight->k / kQuantBlock;
  const int64_t row_bytes = call.ldx * (table.has_bf16_dot ? sizeof(uint16_t) : sizeof(float));
  if (static_cast<int64_t>(sums.size()) < call.m * num_blocks) sums.resize(call.m * num_blocks);
  for (int64_t row = 0; row < call.m; ++row) {
    const uint8_t* x = static_cast<const uint8_t*>(call.x) + row * row_bytes;
    table.sum_blocks(x, sums.data() + row * num_blocks, call.weight->k);
  }
  return sums.data();
}

}  // namespace

void gemm_with(const KernelTable& table, ThreadPool& pool, const GemmCall& call) {
  check(call);
  if (call.m == 0) return;
  const PackedWeight& w = *call.weight;
  GemmCall prepared = call;
  if (w.type != PackedWeight::Type::f32 && !table.has_bf16_dot) {
    prepared.x = widen(table, pool, call);
    prepared.ldx = w.k;
  }
  if (w.type == PackedWeight::Type::q4_1) prepared.block_sums = sum_blocks(table, prepared);
  const TaskGrid grid = {call.m, w.num_groups(), (call.m + kTaskRows - 1) / kTaskRows,
                         std::min<int64_t>(pool.size(), w.num_groups()), table.gemm_tile_rows};
  pool.run(grid.size(), [&](int64_t task, int) { table.gemm(prepared, grid.range(task, call.next)); });
}

void gemm(ThreadPool& pool, const PackedWeight& w, const void* x, int64_t m, int64_t ldx, float* y, int64_t ldy,
          const float* bias) {
  GemmCall call;
  call.weight = &w;
  call.x = x;
  call.m = m;
  call.ldx = ldx;
  call.y = y;
  call.ldy = ldy;
  call.bias = bias;
  gemm_with(kernel_table(), pool, call);
}

}  // namespace headstart
