// What a softmax needs beside products: 2^x, and the largest of many.
#pragma once

#include "simd.h"

namespace headstart {
namespace HEADSTART_ISA_NAMESPACE {

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

#if defined(__AVX512F__)
// The largest lane of each of up to 8 vectors, in the result's first lanes. They are folded onto each other, two to one,
// until each has a lane.
template <int kRows>
static inline vf largest_lanes(const vf (&rows)[kRows]) {
  static_assert(kRows <= 8, "");
  vf of_two[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const vf a = rows[2 * i < kRows ? 2 * i : 0], b = rows[2 * i + 1 < kRows ? 2 * i + 1 : 0];
    of_two[i] = max(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  }
  vf of_four[2];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const vf a = of_two[2 * i], b = of_two[2 * i + 1];
    of_four[i] = max(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  }
  const vf low = _mm512_shuffle_ps(of_four[0], of_four[1], 0x44), high = _mm512_shuffle_ps(of_four[0], of_four[1], 0xee);
  const vf of_eight = max(low, high), twice = max(of_eight, _mm512_permute_ps(of_eight, 0xb1));
  return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0), twice);
}
#endif

// largest[row] = the largest lane of rows[row]; up to 16 floats are written.
template <int kRows>
static inline void find_largest_lanes(const vf (&rows)[kRows], float* largest) {
#if defined(__AVX512F__)
  store(largest, largest_lanes(rows));
#elif defined(__AVX2__)
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(rows[row]), _mm256_extractf128_ps(rows[row], 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    largest[row] = _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
  }
#else
  for (int row = 0; row < kRows; ++row) largest[row] = reduce_max(rows[row]);
#endif
}

}  // namespace HEADSTART_ISA_NAMESPACE
}  // namespace headstart
