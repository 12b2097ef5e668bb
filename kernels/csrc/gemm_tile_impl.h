// The tiles of gemm on f32 and bf16 weights: kRows x kGroups column groups, their whole k in registers.
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

// A tile is at most kMaxTileRows x kMaxTileGroups, and rows x groups at most kTileSize: the accumulators, the weights
// of a step and one broadcast must fit the registers.
static constexpr int kMaxTileGroups = 8;
#if defined(__AVX512F__)
static constexpr int kMaxTileRows = 6;
static constexpr int kTileSize = 24;
#elif defined(__AVX2__)
static constexpr int kMaxTileRows = 6;
static constexpr int kTileSize = 6;
#else
static constexpr int kMaxTileRows = 2;
static constexpr int kTileSize = 2;
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

// What a tile asks to be brought into the L2 cache while it works: the same place of `num_groups` groups further on.
struct Ahead {
  const uint8_t* weights;
  int64_t num_groups;
};

static inline void fetch(const Ahead& ahead, int64_t group_bytes, int64_t offset) {
  for (int64_t g = 0; g < ahead.num_groups; ++g) __builtin_prefetch(ahead.weights + g * group_bytes + offset, 0, 2);
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

// Where vector `v` of a tile's row of 4-byte entries starts, from that row in the tile's first group.
static inline int64_t place_of(int v, int64_t group_bytes) {
  return v / kVectorsPerGroup * group_bytes + v % kVectorsPerGroup * kLanes * 4;
}

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
  static constexpr int kMaxRows = kMaxTileRows, kMaxGroups = kMaxTileGroups;

  template <int kRows, int kGroups>
  static inline void run(Tile<kRows, kGroups>& tile, const GemmCall& call, int64_t row, const uint8_t* w,
                         const Ahead& ahead) {
    const int64_t k = call.weight->k, group_bytes = call.weight->group_bytes;
    const X* x = static_cast<const X*>(call.x) + row * call.ldx;
    vf weights[tile.kVectors];
    for (int64_t i = 0; i < k; ++i) {
      fetch(ahead, group_bytes, i * 64);
#pragma GCC unroll 16
      for (int v = 0; v < tile.kVectors; ++v) {
        weights[v] = load(reinterpret_cast<const float*>(w + i * kGroupColumns * 4 + place_of(v, group_bytes)));
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
  static constexpr int kMaxRows = kMaxTileRows, kMaxGroups = kMaxTileGroups;

  template <int kRows, int kGroups>
  static inline void run(Tile<kRows, kGroups>& tile, const GemmCall& call, int64_t row, const uint8_t* w,
                         const Ahead& ahead) {
    const int64_t k = call.weight->k, group_bytes = call.weight->group_bytes;
    const X* x = static_cast<const X*>(call.x) + row * call.ldx;
    __m512i weights[kGroups];
    for (int64_t pair = 0; pair < k / 2; ++pair) {
      fetch(ahead, group_bytes, pair * 64);
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

static inline vf even_of(vi pairs) { return as_float(shift_left<16>(pairs)); }
static inline vf odd_of(vi pairs) { return as_float(and_int(pairs, set1_int(static_cast<int32_t>(0xffff0000u)))); }

// bf16 weights, widened in registers by a shift (even k) and a mask (odd k); x was widened before.
struct Bf16Weights {
  using X = float;
  static constexpr int kMaxRows = kMaxTileRows, kMaxGroups = kMaxTileGroups;

  template <int kRows, int kGroups>
  static inline void run(Tile<kRows, kGroups>& tile, const GemmCall& call, int64_t row, const uint8_t* w,
                         const Ahead& ahead) {
    const int64_t k = call.weight->k, group_bytes = call.weight->group_bytes;
    const X* x = static_cast<const X*>(call.x) + row * call.ldx;
    vf weights[tile.kVectors];
    for (int64_t i = 0; i < k; i += 2) {
      const uint8_t* pairs = w + i * kGroupColumns * 2;
      fetch(ahead, group_bytes, i * 32);
#pragma GCC unroll 16
      for (int v = 0; v < tile.kVectors; ++v) weights[v] = even_of(load_int(pairs + place_of(v, group_bytes)));
      multiply_add(tile, weights, x + i, call.ldx);
      if (i + 1 == k) break;
      // The pairs are read again rather than kept: with them there would be more values than registers.
      asm volatile("" ::: "memory");
#pragma GCC unroll 16
      for (int v = 0; v < tile.kVectors; ++v) weights[v] = odd_of(load_int(pairs + place_of(v, group_bytes)));
      multiply_add(tile, weights, x + i + 1, call.ldx);
    }
  }
};

#endif

}  // namespace HEADSTART_ISA_NAMESPACE
}  // namespace headstart
