// The arithmetic of attention: 2^x, and products of a few query rows with a panel of keys or values.
//
// A panel is an array of 32-bit elements, [depth][columns]. An element is a float (FmaMath: one fused multiply-add a
// depth) or a pair of bf16 that follow each other in depth (DotMath: the bf16 dot instruction). An output element is
// one chain over depth in ascending order, whatever the number of rows and columns that are worked on together.
#pragma once

#include "attention.h"
#include "simd.h"

namespace headstart {
namespace HEADSTART_ISA_NAMESPACE {

// 16 registers hold 6 x 2 sums beside the operands, 32 hold 6 x 4.
static constexpr int64_t kPanelVectors = kLanes == 16 ? 4 : 2;

// 2^x for x <= 0, relative error below 3e-7, the same bits in every lane; 0 below -126.5, NaN for NaN.
// x = n + r; Cephes' exp2f polynomial for 2^r on [-0.5, 0.5]; n goes into the exponent.
static inline vf exp2_of_negative(vf x) {
  const vf clamped = max(set1(-127.0f), x);
  const vf magic = set1(12583039.0f);  // 1.5 * 2^23 + 127: leaves n + 127 in the lowest bits
  const vf shifted = add(clamped, magic);
  const vf r = sub(clamped, sub(shifted, magic));
  vf p = set1(1.535336188319500e-4f);
  p = fma(p, r, set1(1.339887440266574e-3f));
  p = fma(p, r, set1(9.618437357674640e-3f));
  p = fma(p, r, set1(5.550332471162809e-2f));
  p = fma(p, r, set1(2.402264791363012e-1f));
  p = fma(p, r, set1(6.931472028550421e-1f));
  p = fma(p, r, set1(1.0f));
  return mul(p, as_float(shift_left<23>(as_int(shifted))));
}

static inline float largest_lane(vf a) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(a);
#elif defined(__AVX2__)
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
#else
  return reduce_max(a);
#endif
}

struct FmaMath {
  static constexpr int64_t kPerElement = 1;
  using Operand = vf;
  static inline Operand load_panel(const float* p) { return load(p); }
  static inline Operand spread(const float* p) { return set1(*p); }
  static inline vf accumulate(vf sum, Operand a, Operand b) { return fma(a, b, sum); }

  // One query as column `to` of its block, each line kBlockQueries long.
  static inline void pack_query(float* to, const float* from, float scale, int64_t head_dim) {
    for (int64_t k = 0; k < head_dim; ++k) to[k * kBlockQueries] = from[k] * scale;
  }

  // weights = 2^(scores - base) of a tile's keys, as a panel row; sums [kStateLanes] = sums * rescale + weights.
  static inline void weigh(const float* scores, float base, float* weights, float* sums, float rescale) {
    constexpr int64_t kSums = kStateLanes / kLanes;
    vf total[kSums];
    for (int64_t i = 0; i < kSums; ++i) total[i] = mul(load(sums + i * kLanes), set1(rescale));
    for (int64_t key = 0; key < kTileKeys; key += kStateLanes) {
      for (int64_t i = 0; i < kSums; ++i) {
        const vf value = exp2_of_negative(sub(load(scores + key + i * kLanes), set1(base)));
        store(weights + key + i * kLanes, value);
        total[i] = add(total[i], value);
      }
    }
    for (int64_t i = 0; i < kSums; ++i) store(sums + i * kLanes, total[i]);
  }
};

#if defined(__AVX512BF16__)
struct DotMath {
  static constexpr int64_t kPerElement = 2;
  using Operand = __m512bh;
  static inline Operand as_pairs(vf a) { return (__m512bh)_mm512_castps_si512(a); }
  static inline Operand load_panel(const float* p) { return as_pairs(load(p)); }
  static inline Operand spread(const float* p) { return as_pairs(set1(*p)); }
  static inline vf accumulate(vf sum, Operand a, Operand b) { return _mm512_dpbf16_ps(sum, a, b); }

  static inline void pack_query(float* to, const float* from, float scale, int64_t head_dim) {
    for (int64_t d = 0; d < head_dim; d += 2 * kLanes) {
      const int64_t low = lesser(kLanes, head_dim - d), high = lesser(kLanes, head_dim - d - low);
      const vf first = mul(load_partial(from + d, low), set1(scale));
      const vf second = mul(load_partial(from + d + low, high), set1(scale));
      alignas(64) float pairs[kLanes];
      store(pairs, _mm512_castsi512_ps((__m512i)_mm512_cvtne2ps_pbh(second, first)));
      float* line = to + d / 2 * kBlockQueries;
      for (int64_t i = 0; i < (low + high) / 2; ++i) std::memcpy(line + i * kBlockQueries, pairs + i, sizeof(float));
    }
  }

  // The sums are of the rounded weights: what multiplies the values is what they are divided by.
  static inline void weigh(const float* scores, float base, float* weights, float* sums, float rescale) {
    const Operand ones = as_pairs(as_float(set1_int(0x3f803f80)));
    vf total = mul(load(sums), set1(rescale));
    for (int64_t half = 0; half < 2; ++half) {
      const float* from = scores + half * 2 * kLanes;
      const vf first = exp2_of_negative(sub(load(from), set1(base)));
      const vf second = exp2_of_negative(sub(load(from + kLanes), set1(base)));
      const Operand rounded = _mm512_cvtne2ps_pbh(second, first);
      store(weights + half * kLanes, _mm512_castsi512_ps((__m512i)rounded));
      total = accumulate(total, rounded, ones);
    }
    store(sums, total);
  }
};
#endif

// kRows rows of a by kVectors vectors of columns. a's element (row, depth) is a[row * a_row + depth * a_depth].
template <class Math, int kRows, int kVectors>
static inline __attribute__((always_inline)) void multiply(const float* a, int64_t a_row, int64_t a_depth,
                                                           const float* b, int64_t b_depth, int64_t depth,
                                                           vf (&sums)[kRows][kVectors]) {
  for (int64_t k = 0; k < depth; ++k) {
    typename Math::Operand columns[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) columns[v] = Math::load_panel(b + k * b_depth + v * kLanes);
#pragma GCC unroll 6
    for (int row = 0; row < kRows; ++row) {
      const typename Math::Operand value = Math::spread(a + row * a_row + k * a_depth);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[row][v] = Math::accumulate(sums[row][v], value, columns[v]);
    }
  }
}

// scores [kRows][kTileKeys] of a block of queries against a tile of keys.
template <class Math, int kRows>
static void score_rows(const float* queries, const float* keys, int64_t depth, float* scores) {
  constexpr int kVectors = kPanelVectors;
  for (int64_t first = 0; first < kTileKeys; first += kVectors * kLanes) {
    vf sums[kRows][kVectors];
#pragma GCC unroll 24
    for (int i = 0; i < kRows * kVectors; ++i) sums[i / kVectors][i % kVectors] = zero();
    multiply<Math, kRows, kVectors>(queries, 1, kBlockQueries, keys + first, kTileKeys, depth, sums);
#pragma GCC unroll 24
    for (int i = 0; i < kRows * kVectors; ++i) {
      store(scores + (i / kVectors) * kTileKeys + first + (i % kVectors) * kLanes, sums[i / kVectors][i % kVectors]);
    }
  }
}

// out (row stride out_row) = out * rescale + weights * values, for kVectors vectors of columns.
template <class Math, int kRows, int kVectors>
static inline __attribute__((always_inline)) void add_values_columns(const float* weights, const float* values,
                                                                     int64_t width, int64_t depth, float* out,
                                                                     int64_t out_row, const float* rescale) {
  vf sums[kRows][kVectors];
#pragma GCC unroll 24
  for (int i = 0; i < kRows * kVectors; ++i) {
    const int row = i / kVectors, v = i % kVectors;
    sums[row][v] = mul(load(out + row * out_row + v * kLanes), set1(rescale[row]));
  }
  multiply<Math, kRows, kVectors>(weights, kTileKeys, 1, values, width, depth, sums);
#pragma GCC unroll 24
  for (int i = 0; i < kRows * kVectors; ++i) {
    const int row = i / kVectors, v = i % kVectors;
    store(out + row * out_row + v * kLanes, sums[row][v]);
  }
}

// The same for all columns. depth counts elements of a weights' row.
template <class Math, int kRows>
static void add_values(const float* weights, const float* values, int64_t width, int64_t depth, float* out,
                       int64_t out_row, const float* rescale) {
  int64_t column = 0;
  for (; column + kPanelVectors * kLanes <= width; column += kPanelVectors * kLanes) {
    add_values_columns<Math, kRows, kPanelVectors>(weights, values + column, width, depth, out + column, out_row,
                                                   rescale);
  }
  if (column + 2 * kLanes <= width && kPanelVectors > 2) {
    add_values_columns<Math, kRows, 2>(weights, values + column, width, depth, out + column, out_row, rescale);
    column += 2 * kLanes;
  }
  if (column < width) {
    add_values_columns<Math, kRows, 1>(weights, values + column, width, depth, out + column, out_row, rescale);
  }
}

}  // namespace HEADSTART_ISA_NAMESPACE
}  // namespace headstart
