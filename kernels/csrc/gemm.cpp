#include "gemm.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernel_table.h"

namespace headstart {

namespace {

// A task's rows of x stay in the L2 cache while its columns pass by.
constexpr int64_t kTaskRows = 96;

// The tasks: row parts times column parts, as even as they can be. There are as many column parts as threads, so that
// a thread streams one long run of the weight; a small matrix is done before finer parts could balance anything.
struct TaskGrid {
  int64_t m, num_groups, row_parts, group_parts;

  int64_t size() const { return row_parts * group_parts; }

  GemmRange range(int64_t task, const PackedWeight* next) const {
    const int64_t row = task / group_parts, part = task % group_parts;
    const uint8_t* after = nullptr;
    if (next != nullptr && row + 1 == row_parts) after = next->group(part * next->num_groups() / group_parts);
    return {row * m / row_parts, (row + 1) * m / row_parts, part * num_groups / group_parts,
            (part + 1) * num_groups / group_parts, after};
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

}  // namespace

void gemm_with(const KernelTable& table, ThreadPool& pool, const GemmCall& call) {
  check(call);
  if (call.m == 0) return;
  const PackedWeight& w = *call.weight;
  GemmCall prepared = call;
  std::vector<float> widened;
  if (w.type != PackedWeight::Type::f32 && !table.has_bf16_dot) {
    widened.resize(call.m * w.k);
    const uint16_t* x = static_cast<const uint16_t*>(call.x);
    pool.run(call.m, [&](int64_t row, int) {
      table.widen_bf16(x + row * call.ldx, widened.data() + row * w.k, w.k);
    });
    prepared.x = widened.data();
    prepared.ldx = w.k;
  }
  const TaskGrid grid = {call.m, w.num_groups(), (call.m + kTaskRows - 1) / kTaskRows,
                         std::min<int64_t>(pool.size(), w.num_groups())};
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
