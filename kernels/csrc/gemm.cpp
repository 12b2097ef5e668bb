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

template <typename T>
T* at_least(std::vector<T>& values, int64_t size) {
  if (static_cast<int64_t>(values.size()) < size) values.resize(size);
  return values.data();
}

template <typename Fn>
void for_rows(ThreadPool& pool, int64_t m, Fn fn) {
  const int64_t num_parts = m < kTaskRows / 8 ? 1 : pool.size();
  pool.run(num_parts, [&](int64_t part, int) {
    for (int64_t row = part * m / num_parts; row < (part + 1) * m / num_parts; ++row) fn(row);
  });
}

// x as floats, in memory of the calling thread that is good until its next call unless the call brings some.
void widen(const KernelTable& table, ThreadPool& pool, GemmCall& call) {
  static thread_local std::vector<float> widened;
  const int64_t k = call.weight->k;
  const uint16_t* x = static_cast<const uint16_t*>(call.x);
  float* to = call.widened != nullptr ? call.widened : at_least(widened, call.m * k);
  for_rows(pool, call.m, [&](int64_t row) { table.widen_bf16(x + row * call.ldx, to + row * k, k); });
  call.x = to;
  call.ldx = k;
}

QuantisedX quantise(const KernelTable& table, ThreadPool& pool, const GemmCall& call) {
  static thread_local QuantisedBuffer buffer;
  const QuantisedX to = buffer.take(call.m, call.weight->k);
  const float* x = static_cast<const float*>(call.x);
  for_rows(pool, call.m, [&](int64_t row) { table.quantise_row(x + row * call.ldx, to, row); });
  return to;
}

}  // namespace

QuantisedX QuantisedBuffer::take(int64_t m, int64_t k) {
  const int64_t num_blocks = k / kQuantBlock, ld = m | 1;
  return {num_blocks, ld, at_least(quants_, num_blocks * ld * kQuantBlock), at_least(scales_, m),
          at_least(sums_, num_blocks * ld)};
}

void gemm_with(const KernelTable& table, ThreadPool& pool, const GemmCall& call) {
  check(call);
  if (call.m == 0) return;
  const PackedWeight& w = *call.weight;
  GemmCall prepared = call;
  if (w.is_quantised() && call.quantised.q == nullptr) prepared.quantised = quantise(table, pool, call);
  if (w.takes_bf16() && !table.has_bf16_dot) widen(table, pool, prepared);
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
