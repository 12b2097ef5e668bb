// gemm on one instruction set: which tile does which rows and columns, and in what order. See gemm_tile_impl.h.
#pragma once

#include "gemm_quant_impl.h"

namespace headstart {
namespace HEADSTART_ISA_NAMESPACE {

template <int kRows, int kGroups>
static inline void write_tile(const Tile<kRows, kGroups>& tile, const GemmCall& call, int64_t row, int64_t group) {
#pragma GCC unroll 16
  for (int v = 0; v < tile.kVectors; ++v) {
    const int64_t column = group * kGroupColumns + v * kLanes;
    const int64_t count = lesser(kLanes, call.weight->n - column);
    if (count <= 0) break;
    vf bias = zero();
    if (call.bias != nullptr) bias = load_partial(call.bias + column, count);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      float* y = call.y + (row + r) * call.ldy + column;
      vf value = add(tile.sum[r][v], bias);
      if (call.adds) value = add(load_partial(y, count), value);
      store_partial(y, value, count);
    }
  }
}

// A tile's outputs are rarely in the cache when it begins: they arrive while it works.
template <int kRows, int kGroups>
static inline void fetch_outputs(const GemmCall& call, int64_t row, int64_t group) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int g = 0; g < kGroups; ++g) {
      __builtin_prefetch(call.y + (row + r) * call.ldy + (group + g) * kGroupColumns, 1, 3);
    }
  }
}

template <typename Weights, int kRows, int kGroups>
static void run_tile(const GemmCall& call, int64_t row, int64_t group, const Ahead& ahead) {
  Tile<kRows, kGroups> tile;
  tile.clear();
  fetch_outputs<kRows, kGroups>(call, row, group);
  Weights::run(tile, call, row, call.weight->group(group), ahead);
  write_tile(tile, call, row, group);
}

using TileFn = void (*)(const GemmCall& call, int64_t row, int64_t group, const Ahead& ahead);

template <typename Weights>
struct TileTable {
  TileFn tiles[Weights::kMaxRows][Weights::kMaxGroups];

  template <int kRows, int kGroups>
  constexpr void fill() {
    if constexpr (kRows * kGroups <= kTileSize) tiles[kRows - 1][kGroups - 1] = run_tile<Weights, kRows, kGroups>;
    if constexpr (kGroups < Weights::kMaxGroups) {
      fill<kRows, kGroups + 1>();
    } else if constexpr (kRows < Weights::kMaxRows) {
      fill<kRows + 1, 1>();
    }
  }

  constexpr TileTable() : tiles{} { fill<1, 1>(); }
};

// `total` cut into `count` parts that differ by one at most: the size of part `index`.
static inline int64_t part_of(int64_t total, int64_t count, int64_t index) {
  return total / count + (index < total % count);
}

// Columns on the outside, so that a group's weights are read from memory once for all rows of the range. Few rows take
// many groups at once: their chains hide the latency of an addition. While the tiles of some groups work they fetch the
// next groups, each its share.
template <typename Weights>
static void run_range(const GemmCall& call, const GemmRange& range) {
  static constexpr TileTable<Weights> kTable;
  const int64_t num_rows = range.row_end - range.row_begin, num_groups = range.group_end - range.group_begin;
  const int64_t num_tiles = (num_rows + Weights::kMaxRows - 1) / Weights::kMaxRows;
  const int64_t most_groups = lesser(Weights::kMaxGroups, kTileSize / part_of(num_rows, num_tiles, 0));
  const int64_t num_blocks = (num_groups + most_groups - 1) / most_groups;
  int64_t group = range.group_begin;
  for (int64_t block = 0; block < num_blocks; ++block) {
    const int64_t groups = part_of(num_groups, num_blocks, block);
    int64_t row = range.row_begin;
    const bool is_last = block + 1 == num_blocks;
    const uint8_t* next = is_last ? range.next : call.weight->group(group + groups);
    int64_t left = is_last ? (range.next != nullptr) * groups : part_of(num_groups, num_blocks, block + 1);
    for (int64_t tile = 0; tile < num_tiles; ++tile) {
      const int64_t rows = part_of(num_rows, num_tiles, tile);
      const int64_t share = (left + num_tiles - tile - 1) / (num_tiles - tile);
      kTable.tiles[rows - 1][groups - 1](call, row, group, {next, share});
      row += rows;
      next += share * call.weight->group_bytes;
      left -= share;
    }
    group += groups;
  }
}

static void gemm_range(const GemmCall& call, GemmRange range) {
  switch (call.weight->type) {
    case PackedWeight::Type::f32: return run_range<FloatWeights>(call, range);
    case PackedWeight::Type::bf16: return run_range<Bf16Weights>(call, range);
    case PackedWeight::Type::q8_0: return run_range<Q80Weights>(call, range);
    case PackedWeight::Type::q4_1: return run_range<Q41Weights>(call, range);
  }
}

}  // namespace HEADSTART_ISA_NAMESPACE
}  // namespace headstart
