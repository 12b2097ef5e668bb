#include "gemm.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernel_table.h"

namespace headstart {

namespace {

// A task's rows of x stay in the L2 cache while its columns pass by.
constexpr int64_t kTaskRows = 96;
constexpr int64_t kTasksPerThread = 4;

struct TaskGrid {
  int64_t row_step, num_row_steps, group_step, num_group_steps;

  int64_t size() const { return num_row_steps * num_group_steps; }

  GemmRange range(int64_t task, int64_t m, int64_t num_groups) const {
    const int64_t row = task / num_group_steps * row_step;
    const int64_t group = task % num_group_steps * group_step;
    return {row, std::min(m, row + row_step), group, std::min(num_groups, group + group_step)};
  }
};

TaskGrid cut(int64_t m, int64_t num_groups, int64_t num_threads, int64_t tile_groups) {
  TaskGrid grid;
  grid.num_row_steps = (m + kTaskRows - 1) / kTaskRows;
  grid.row_step = (m + grid.num_row_steps - 1) / grid.num_row_steps;
  const int64_t wanted = std::max<int64_t>(1, num_threads * kTasksPerThread / grid.num_row_steps);
  const int64_t step = (num_groups + wanted - 1) / wanted;
  grid.group_step = num_threads == 1 ? num_groups : (step + tile_groups - 1) / tile_groups * tile_groups;
  grid.num_group_steps = (num_groups + grid.group_step - 1) / grid.group_step;
  return grid;
}

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
  const TaskGrid grid = cut(call.m, w.num_groups(), pool.size(), table.gemm_tile_groups);
  pool.run(grid.size(), [&](int64_t task, int) { table.gemm(prepared, grid.range(task, call.m, w.num_groups())); });
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
