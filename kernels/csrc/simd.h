// One vector of floats, `vf` of kLanes lanes, in the instruction set that this translation unit is compiled for.
// Included by the kernels_*.cpp files only, which name the namespace: HEADSTART_ISA_NAMESPACE.
//
// No function or template of the standard library is called here or in an *_impl.h: the linker keeps one copy of such
// a function for the whole program, and it might be the one compiled for a set that the machine lacks.
#pragma once

#include <cstdint>
#include <cstring>

#include "bf16.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace headstart {
namespace HEADSTART_ISA_NAMESPACE {

static inline int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t greater(int64_t a, int64_t b) { return a > b ? a : b; }

// sum += a.even * b.even + a.odd * b.odd in each lane's two 16-bit halves. Written out, for left to itself the compiler
// first multiplies what a whole block adds and has no registers for that.
#define HEADSTART_DOT_WORDS                                                                       \
  static inline vi dot_words(vi sum, vi a, vi b) {                                                \
    vi product;                                                                                   \
    asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+v"(sum), "=&v"(product) : "v"(a), "v"(b)); \
    return sum;                                                                                   \
  }

#if defined(__AVX512F__)

using vf = __m512;
using vi = __m512i;
static constexpr int64_t kLanes = 16;

static inline vf set1(float value) { return _mm512_set1_ps(value); }
static inline vf zero() { return _mm512_setzero_ps(); }
static inline vf load(const float* p) { return _mm512_loadu_ps(p); }
static inline void store(float* p, vf a) { _mm512_storeu_ps(p, a); }
static inline vf add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf min(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline vf round(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

static inline __mmask16 mask_of(int64_t count) { return static_cast<__mmask16>((1u << count) - 1u); }
static inline vf load_partial(const float* p, int64_t count) { return _mm512_maskz_loadu_ps(mask_of(count), p); }
static inline void store_partial(float* p, vf a, int64_t count) { _mm512_mask_storeu_ps(p, mask_of(count), a); }

static inline vf load_bf16(const uint16_t* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

static inline void store_bf16(uint16_t* p, vf a) {
#if defined(__AVX512BF16__)
  // Takes subnormal numbers for zero, as the dot instruction does that will read them.
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(a));
#else
  const __m512i bits = _mm512_castps_si512(a);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
  const __m512i result = _mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, is_nan, quiet), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(result));
#endif
}

static inline vi set1_int(int32_t value) { return _mm512_set1_epi32(value); }
static inline vi load_int(const void* p) { return _mm512_loadu_si512(p); }
static inline vf as_float(vi a) { return _mm512_castsi512_ps(a); }
static inline vi as_int(vf a) { return _mm512_castps_si512(a); }
static inline vf to_float(vi a) { return _mm512_cvtepi32_ps(a); }
static inline vi to_int(vf a) { return _mm512_cvtps_epi32(a); }
static inline vi add_int(vi a, vi b) { return _mm512_add_epi32(a, b); }
static inline vi and_int(vi a, vi b) { return _mm512_and_si512(a, b); }
template <int kBits> static inline vi shift_left(vi a) { return _mm512_slli_epi32(a, kBits); }
template <int kBits> static inline vi shift_right(vi a) { return _mm512_srli_epi32(a, kBits); }
template <int kBits> static inline vi shift_right_signed(vi a) { return _mm512_srai_epi32(a, kBits); }
template <int kBits> static inline vi shift_right_words(vi a) { return _mm512_srli_epi16(a, kBits); }
static inline vi max_int(vi a, vi b) { return _mm512_max_epi32(a, b); }
static inline int32_t reduce_max_int(vi a) { return _mm512_reduce_max_epi32(a); }
static inline int32_t reduce_add_int(vi a) { return _mm512_reduce_add_epi32(a); }
static inline void store_words(int16_t* p, vi a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a));
}
static inline vi load_bytes_as_words(const uint8_t* p) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
#if defined(__AVX512VNNI__)
static inline vi dot_words(vi sum, vi a, vi b) { return _mm512_dpwssd_epi32(sum, a, b); }
#else
HEADSTART_DOT_WORDS
#endif

#elif defined(__AVX2__)

using vf = __m256;
using vi = __m256i;
static constexpr int64_t kLanes = 8;

static inline vf set1(float value) { return _mm256_set1_ps(value); }
static inline vf zero() { return _mm256_setzero_ps(); }
static inline vf load(const float* p) { return _mm256_loadu_ps(p); }
static inline void store(float* p, vf a) { _mm256_storeu_ps(p, a); }
static inline vf add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
static inline vf mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
static inline vf div(vf a, vf b) { return _mm256_div_ps(a, b); }
static inline vf fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf max(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vf min(vf a, vf b) { return _mm256_min_ps(a, b); }
static inline vf round(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

static inline __m256i mask_of(int64_t count) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int32_t>(count)), lanes);
}
static inline vf load_partial(const float* p, int64_t count) { return _mm256_maskload_ps(p, mask_of(count)); }
static inline void store_partial(float* p, vf a, int64_t count) { _mm256_maskstore_ps(p, mask_of(count), a); }

static inline vf load_bf16(const uint16_t* p) {
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

static inline void store_bf16(uint16_t* p, vf a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  const __m256i result = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(result, result), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}

static inline vi set1_int(int32_t value) { return _mm256_set1_epi32(value); }
static inline vi load_int(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
static inline vf as_float(vi a) { return _mm256_castsi256_ps(a); }
static inline vi as_int(vf a) { return _mm256_castps_si256(a); }
static inline vf to_float(vi a) { return _mm256_cvtepi32_ps(a); }
static inline vi to_int(vf a) { return _mm256_cvtps_epi32(a); }
static inline vi add_int(vi a, vi b) { return _mm256_add_epi32(a, b); }
static inline vi and_int(vi a, vi b) { return _mm256_and_si256(a, b); }
template <int kBits> static inline vi shift_left(vi a) { return _mm256_slli_epi32(a, kBits); }
template <int kBits> static inline vi shift_right(vi a) { return _mm256_srli_epi32(a, kBits); }
template <int kBits> static inline vi shift_right_signed(vi a) { return _mm256_srai_epi32(a, kBits); }
template <int kBits> static inline vi shift_right_words(vi a) { return _mm256_srli_epi16(a, kBits); }
static inline vi max_int(vi a, vi b) { return _mm256_max_epi32(a, b); }
static inline int32_t reduce_max_int(vi a) {
  const __m128i fours = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  const __m128i twos = _mm_max_epi32(fours, _mm_shuffle_epi32(fours, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(twos, _mm_shuffle_epi32(twos, 0xb1)));
}
static inline int32_t reduce_add_int(vi a) {
  const __m128i fours = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  const __m128i twos = _mm_add_epi32(fours, _mm_shuffle_epi32(fours, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(twos, _mm_shuffle_epi32(twos, 0xb1)));
}
static inline void store_words(int16_t* p, vi a) {
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, a), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}
static inline vi load_bytes_as_words(const uint8_t* p) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
HEADSTART_DOT_WORDS

#else

// Portable: the compiler's own vectors of four, which become SSE2 or NEON. a * b + c is two roundings here.
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
typedef uint32_t vu __attribute__((vector_size(16)));
typedef uint16_t vw __attribute__((vector_size(16)));
static constexpr int64_t kLanes = 4;

static inline vf set1(float value) { return vf{value, value, value, value}; }
static inline vf zero() { return vf{}; }
static inline vf load(const float* p) {
  vf a;
  std::memcpy(&a, p, sizeof(a));
  return a;
}
static inline void store(float* p, vf a) { std::memcpy(p, &a, sizeof(a)); }
static inline vf add(vf a, vf b) { return a + b; }
static inline vf sub(vf a, vf b) { return a - b; }
static inline vf mul(vf a, vf b) { return a * b; }
static inline vf div(vf a, vf b) { return a / b; }
static inline vf fma(vf a, vf b, vf c) { return a * b + c; }
static inline vf max(vf a, vf b) { return a > b ? a : b; }
static inline vf min(vf a, vf b) { return a < b ? a : b; }

static inline vf load_partial(const float* p, int64_t count) {
  vf a = zero();
  std::memcpy(&a, p, static_cast<size_t>(count) * sizeof(float));
  return a;
}
static inline void store_partial(float* p, vf a, int64_t count) {
  std::memcpy(p, &a, static_cast<size_t>(count) * sizeof(float));
}
static inline vf load_bf16(const uint16_t* p) {
  return vf{float_of_bf16(p[0]), float_of_bf16(p[1]), float_of_bf16(p[2]), float_of_bf16(p[3])};
}
static inline void store_bf16(uint16_t* p, vf a) {
  for (int i = 0; i < kLanes; ++i) p[i] = bf16_of_float(a[i]);
}

static inline vi set1_int(int32_t value) { return vi{value, value, value, value}; }
static inline vi load_int(const void* p) {
  vi a;
  std::memcpy(&a, p, sizeof(a));
  return a;
}
static inline vf as_float(vi a) { return (vf)a; }
static inline vi as_int(vf a) { return (vi)a; }
static inline vf to_float(vi a) { return __builtin_convertvector(a, vf); }
static inline vi add_int(vi a, vi b) { return (vi)((vu)a + (vu)b); }
static inline vi and_int(vi a, vi b) { return a & b; }
template <int kBits> static inline vi shift_left(vi a) { return (vi)((vu)a << kBits); }
template <int kBits> static inline vi shift_right(vi a) { return (vi)((vu)a >> kBits); }
template <int kBits> static inline vi shift_right_signed(vi a) { return a >> kBits; }
template <int kBits> static inline vi shift_right_words(vi a) { return (vi)((vw)a >> kBits); }
static inline vi max_int(vi a, vi b) { return a > b ? a : b; }
static inline int32_t reduce_max_int(vi a) {
  const int32_t low = a[0] > a[1] ? a[0] : a[1], high = a[2] > a[3] ? a[2] : a[3];
  return low > high ? low : high;
}
static inline int32_t reduce_add_int(vi a) { return a[0] + a[1] + a[2] + a[3]; }
static inline void store_words(int16_t* p, vi a) {
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<int16_t>(a[i]);
}
static inline vi load_bytes_as_words(const uint8_t* p) {
  int8_t bytes[2 * kLanes];
  std::memcpy(bytes, p, sizeof(bytes));
  vi words;
  for (int i = 0; i < kLanes; ++i) words[i] = (bytes[2 * i] & 0xffff) | bytes[2 * i + 1] * 0x10000;
  return words;
}
#if defined(__SSE2__)
static inline vi dot_words(vi sum, vi a, vi b) { return add_int(sum, (vi)_mm_madd_epi16((__m128i)a, (__m128i)b)); }
#else
static inline vi dot_words(vi sum, vi a, vi b) {
  const vi even = shift_right_signed<16>(shift_left<16>(a)) * shift_right_signed<16>(shift_left<16>(b));
  return add_int(sum, add_int(even, shift_right_signed<16>(a) * shift_right_signed<16>(b)));
}
#endif
// Adding and taking away 1.5 * 2^23 rounds to an integer, ties to even, for |a| < 2^22.
static inline vf round(vf a) {
  const vf magic = set1(12582912.0f);
  return (a + magic) - magic;
}
static inline vi to_int(vf a) { return __builtin_convertvector(round(a), vi); }

#endif

static inline vf load_bf16_partial(const uint16_t* p, int64_t count) {
  uint16_t padded[kLanes] = {};
  std::memcpy(padded, p, static_cast<size_t>(count) * sizeof(uint16_t));
  return load_bf16(padded);
}

static inline void store_bf16_partial(uint16_t* p, vf a, int64_t count) {
  uint16_t padded[kLanes];
  store_bf16(padded, a);
  std::memcpy(p, padded, static_cast<size_t>(count) * sizeof(uint16_t));
}

#if defined(__AVX2__)
static inline float reduce_add_half(__m256 a) {
  const __m128 fours = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 twos = _mm_add_ps(fours, _mm_movehl_ps(fours, fours));
  return _mm_cvtss_f32(_mm_add_ss(twos, _mm_movehdup_ps(twos)));
}
#endif

// Halves are folded onto each other until one lane is left: one fixed order.
static inline float reduce_add(vf a) {
#if defined(__AVX512F__)
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  return reduce_add_half(half);
#elif defined(__AVX2__)
  return reduce_add_half(a);
#else
  float lanes[kLanes];
  store(lanes, a);
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
#endif
}

static inline float reduce_max(vf a) {
  float lanes[kLanes];
  store(lanes, a);
  float result = lanes[0];
  for (int64_t i = 1; i < kLanes; ++i) result = lanes[i] > result ? lanes[i] : result;
  return result;
}

// e^x, relative error below 3e-7; the same bits in every lane. Below -87.3 it gives 0, above 88.3 e^88.3; -inf gives 0.
// Cephes' expf: x = n ln 2 + r with ln 2 in two parts, a polynomial of degree 6 for e^r, then 2^n into the exponent.
static inline vf exp(vf x) {
  const vf clamped = max(min(x, set1(88.3f)), set1(-87.3f));
  const vf n = round(mul(clamped, set1(1.44269504088896341f)));
  const vf r = fma(n, set1(2.12194440e-4f), fma(n, set1(-0.693359375f), clamped));
  vf p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  const vf e = add(fma(p, mul(r, r), r), set1(1.0f));
  const vf power = as_float(shift_left<23>(add_int(to_int(n), set1_int(127))));
  const vf value = mul(e, power);
#if defined(__AVX512F__)
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, set1(-87.3f), _CMP_NLT_UQ), value);
#elif defined(__AVX2__)
  return _mm256_and_ps(_mm256_cmp_ps(x, set1(-87.3f), _CMP_NLT_UQ), value);
#else
  return as_float(as_int(value) & ~(x < set1(-87.3f)));
#endif
}

}  // namespace HEADSTART_ISA_NAMESPACE
}  // namespace headstart
