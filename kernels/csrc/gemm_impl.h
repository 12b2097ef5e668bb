// The micro-kernels of gemm: tiles of kRows x kGroups column groups, their whole k in registers.
//
// Every tile of a weight type does the same operations per output element, in ascending k, whatever its size: that is
// what makes the result independent of m, of the cut into tasks and of the thread. Never split k here.
#pragma once

#include <utility>

#include "gemm.h"
#include "simd.h"

namespace headstart {
namespace HEADSTART_ISA_NAMESPACE {

static constexpr int kVectorsPerGroup = static_cast<int>(kGroupColumns / kLanes);

// Tile sizes by the number of registers: accumulators, the weights of a step and one broadcast must fit.
#if defined(__AVX512F__)
static constexpr int kMaxTileRows = 12;
static constexpr int kTileGroups = 2;
static constexpr int kMostGroups = 4;  // times kTileGroups, for a single row
#elif defined(__AVX2__)
static constexpr int kMaxTileRows = 6;
static constexpr int kTileGroups = 1;
static constexpr int kMostGroups = 4;
#else
static constexpr int kMaxTileRows = 2;
static constexpr int kTileGroups = 1;
static constexpr int kMostGroups = 2;
#endif

#if defined(__AVX512BF16__)
static constexpr bool kHasBf16Dot = true;
#else
static constexpr bool kHasBf16Dot = false;
#endif

static inline void widen_bf16(const uint16_t* from, float* to, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, load_bf16(from + i));
  for (; i < count; ++i) to[i] = float_of_bf16(from[i]);
}

template <int kRows, int kGroups>
struct Tile {
  static constexpr int kVectors = kGroups * kVectorsPerGroup;
  vf sum[kRows][kVectors];

  inline void clear() {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sum[r][v] = zero();
    }
  }
};

// One float of x per row times one row of weights.
template <int kRows, int kGroups>
static inline void multiply_add(Tile<kRows, kGroups>& tile, const vf* w, const float* x, int64_t ldx) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const vf factor = set1(x[r * ldx]);
#pragma GCC unroll 16
    for (int v = 0; v < tile.kVectors; ++v) tile.sum[r][v] = fma(factor, w[v], tile.sum[r][v]);
  }
}

// f32 weights: x is float.
struct FloatWeights {
  using X = float;

  template <int kRows, int kGroups>
  static inline void run(Tile<kRows, kGroups>& tile, const GemmCall& call, const float* x, const uint8_t* w) {
    const int64_t k = call.weight->k, group_bytes = call.weight->group_bytes;
    vf weights[tile.kVectors];
    for (int64_t i = 0; i < k; ++i) {
#pragma GCC unroll 16
      for (int v = 0; v < tile.kVectors; ++v) {
        const uint8_t* group = w + v / kVectorsPerGroup * group_bytes + i * kGroupColumns * 4;
        weights[v] = load(reinterpret_cast<const float*>(group) + v % kVectorsPerGroup * kLanes);
      }
      multiply_add(tile, weights, x + i, call.ldx);
    }
  }
};

#if defined(__AVX512BF16__)

static inline __m512 dot_pairs(__m512 sum, uint32_t x_pair, __m512i w) {
  return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(static_cast<int32_t>(x_pair)), (__m512bh)w);
}

template <int kRows, int kGroups>
static inline void dot_add(Tile<kRows, kGroups>& tile, const __m512i* w, const uint16_t* x, int64_t ldx, bool is_half) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    uint32_t pair = x[r * ldx];
    if (!is_half) std::memcpy(&pair, x + r * ldx, sizeof(pair));
#pragma GCC unroll 16
    for (int g = 0; g < kGroups; ++g) tile.sum[r][g] = dot_pairs(tile.sum[r][g], pair, w[g]);
  }
}

// bf16 weights and bf16 x: one dot instruction per pair of k.
struct Bf16Weights {
  using X = uint16_t;

  template <int kRows, int kGroups>
  static inline void run(Tile<kRows, kGroups>& tile, const GemmCall& call, const uint16_t* x, const uint8_t* w) {
    const int64_t k = call.weight->k, group_bytes = call.weight->group_bytes;
    __m512i weights[kGroups];
    for (int64_t pair = 0; pair < k / 2; ++pair) {
#pragma GCC unroll 16
      for (int g = 0; g < kGroups; ++g) weights[g] = _mm512_load_si512(w + g * group_bytes + pair * 64);
      dot_add(tile, weights, x + 2 * pair, call.ldx, false);
    }
    if (k % 2 == 0) return;
#pragma GCC unroll 16
    for (int g = 0; g < kGroups; ++g) weights[g] = _mm512_load_si512(w + g * group_bytes + k / 2 * 64);
    dot_add(tile, weights, x + k - 1, call.ldx, true);
  }
};

#else

// bf16 weights, widened in registers by a shift (even k) and a mask (odd k); x was widened before.
struct Bf16Weights {
  using X = float;

  template <int kRows, int kGroups>
  static inline void run(Tile<kRows, kGroups>& tile, const GemmCall& call, const float* x, const uint8_t* w) {
    const int64_t k = call.weight->k, group_bytes = call.weight->group_bytes;
    const vi high = set1_int(static_cast<int32_t>(0xffff0000u));
    vf even[tile.kVectors], odd[tile.kVectors];
    for (int64_t i = 0; i < k; i += 2) {
#pragma GCC unroll 16
      for (int v = 0; v < tile.kVectors; ++v) {
        const uint8_t* group = w + v / kVectorsPerGroup * group_bytes + i * kGroupColumns * 2;
        const vi pairs = load_int(group + v % kVectorsPerGroup * kLanes * 4);
        even[v] = as_float(shift_left<16>(pairs));
        odd[v] = as_float(and_int(pairs, high));
      }
      multiply_add(tile, even, x + i, call.ldx);
      if (i + 1 < k) multiply_add(tile, odd, x + i + 1, call.ldx);
    }
  }
};

#endif

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
      store_partial(call.y + (row + r) * call.ldy + column, add(tile.sum[r][v], bias), count);
    }
  }
}

template <typename Weights, int kRows, int kGroups>
static void run_tile(const GemmCall& call, int64_t row, int64_t group) {
  using X = typename Weights::X;
  Tile<kRows, kGroups> tile;
  tile.clear();
  Weights::run(tile, call, static_cast<const X*>(call.x) + row * call.ldx, call.weight->group(group));
  write_tile(tile, call, row, group);
}

using TileFn = void (*)(const GemmCall& call, int64_t row, int64_t group);

template <int... kIndices>
struct Indices {};
template <int kCount, int... kIndices>
struct CountTo : CountTo<kCount - 1, kCount - 1, kIndices...> {};
template <int... kIndices>
struct CountTo<0, kIndices...> {
  using Type = Indices<kIndices...>;
};

template <typename Weights, int kGroups, int... kIndices>
static inline TileFn pick_tile(int64_t rows, Indices<kIndices...>) {
  static constexpr TileFn kTiles[] = {run_tile<Weights, kIndices + 1, kGroups>...};
  return kTiles[rows - 1];
}

// Columns first on the outside, so that a group's weights are read from memory once for all rows of the range.
template <typename Weights, int kMaxRows, int kGroups>
static void run_groups(const GemmCall& call, const GemmRange& range) {
  const int64_t num_rows = range.row_end - range.row_begin;
  const int64_t num_tiles = (num_rows + kMaxRows - 1) / kMaxRows;
  for (int64_t group = range.group_begin; group < range.group_end; group += kGroups) {
    int64_t row = range.row_begin;
    for (int64_t tile = 0; tile < num_tiles; ++tile) {
      const int64_t rows = num_rows / num_tiles + (tile < num_rows % num_tiles);
      pick_tile<Weights, kGroups>(rows, typename CountTo<kMaxRows>::Type())(call, row, group);
      row += rows;
    }
  }
}

// Few rows take many groups at once: their chains hide the latency of an addition and of memory.
template <typename Weights, int kGroups>
static void run_range(const GemmCall& call, GemmRange range) {
  constexpr int kMaxRows = kMaxTileRows * kTileGroups / kGroups;
  const int64_t whole = (range.group_end - range.group_begin) / kGroups * kGroups;
  run_groups<Weights, kMaxRows, kGroups>(
      call, {range.row_begin, range.row_end, range.group_begin, range.group_begin + whole});
  range.group_begin += whole;
  if constexpr (kGroups > 1) {
    if (range.group_begin < range.group_end) run_range<Weights, kGroups / 2>(call, range);
  }
}

template <typename Weights, int kTimes>
static void run_widest(const GemmCall& call, const GemmRange& range) {
  if constexpr (kTimes == 1) {
    run_range<Weights, kTileGroups>(call, range);
  } else if ((range.row_end - range.row_begin) * kTimes <= kMaxTileRows) {
    run_range<Weights, kTileGroups * kTimes>(call, range);
  } else {
    run_widest<Weights, kTimes / 2>(call, range);
  }
}

static void gemm_range(const GemmCall& call, GemmRange range) {
  if (call.weight->type == PackedWeight::Type::f32) return run_widest<FloatWeights, kMostGroups>(call, range);
  run_widest<Bf16Weights, kMostGroups>(call, range);
}

}  // namespace HEADSTART_ISA_NAMESPACE
}  // namespace headstart
