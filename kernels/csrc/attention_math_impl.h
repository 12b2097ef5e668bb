// The arithmetic of attention: 2^x, and products of a few query rows with panels of keys or values.
//
// A panel's element is a word of 32 bits: a float, or two bf16 that follow each other in depth. Each kind of arithmetic
// says how words become operands: as floats (FloatMath), as two floats one after the other (WidenedMath), or as pairs
// for the bf16 dot instruction (DotMath). An output element is one chain over depth in ascending order, whatever the
// number of rows and columns that are worked on together.
#pragma once

#include "attention_panels_impl.h"

namespace headstart {
namespace HEADSTART_ISA_NAMESPACE {

// 16 registers hold 6 x 2 vectors of sums beside the operands, 32 hold 6 x 4.
static constexpr int kMostColumns = (kLanes == 16 ? 4 : 2) * kLanes;

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

// A tile whose later half nobody sees is scored and weighed by half.
static constexpr int64_t kHalfTile = kTileKeys / 2;

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

struct FloatMath {
  using Number = float;                       // of the storage
  static constexpr int64_t kWordNumbers = 1;  // that follow each other in depth
  static constexpr int kWordSteps = 1;        // multiplications of a word
  using Operand = vf;
  static inline Operand operand(vf words, int) { return words; }
  static inline Operand first_number(vf words) { return words; }
  static inline Operand spread(const float* p) { return set1(*p); }
  static inline vf accumulate(vf sum, Operand a, Operand b) { return fma(a, b, sum); }

  // One query as column `to` of its block, each line kBlockQueries long.
  static inline void pack_query(float* to, const float* from, float scale, int64_t head_dim) {
    for (int64_t k = 0; k < head_dim; ++k) to[k * kBlockQueries] = from[k] * scale;
  }

  // weights = 2^(scores - base) of num_keys keys, kHalfTile or all; sums [kStateLanes] = sums * rescale + weights.
  static inline void weigh(const float* scores, int64_t num_keys, float base, float* weights, float* sums,
                           float rescale) {
    constexpr int64_t kSums = kStateLanes / kLanes;
    vf total[kSums];
    for (int64_t i = 0; i < kSums; ++i) total[i] = mul(load(sums + i * kLanes), set1(rescale));
    for (int64_t key = 0; key < num_keys; key += kStateLanes) {
      for (int64_t i = 0; i < kSums; ++i) {
        const vf value = exp2_of_negative(sub(load(scores + key + i * kLanes), set1(base)));
        store(weights + key + i * kLanes, value);
        total[i] = add(total[i], value);
      }
    }
    for (int64_t i = 0; i < kSums; ++i) store(sums + i * kLanes, total[i]);
  }
};

struct WidenedMath : FloatMath {
  using Number = uint16_t;
  static constexpr int64_t kWordNumbers = 2;
  static constexpr int kWordSteps = 2;
  static inline Operand operand(vf words, int step) {
    if (step == 0) return first_number(words);
    return as_float(and_int(as_int(words), set1_int(static_cast<int32_t>(0xffff0000u))));
  }
  static inline Operand first_number(vf words) { return as_float(shift_left<16>(as_int(words))); }
};

#if defined(__AVX512BF16__)
struct DotMath {
  using Number = uint16_t;
  static constexpr int64_t kWordNumbers = 2;
  static constexpr int kWordSteps = 1;
  using Operand = __m512bh;
  static inline Operand as_pairs(vf a) { return (__m512bh)_mm512_castps_si512(a); }
  static inline Operand operand(vf words, int) {
    asm("" : "+v"(words));  // stays in its register: GCC would load it again for each row
    return as_pairs(words);
  }
  static inline Operand first_number(vf words) {
    return as_pairs(as_float(and_int(as_int(words), set1_int(0x0000ffff))));
  }
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
  static inline void weigh(const float* scores, int64_t num_keys, float base, float* weights, float* sums,
                           float rescale) {
    const Operand ones = as_pairs(as_float(set1_int(0x3f803f80)));
    vf total = mul(load(sums), set1(rescale));
    for (int64_t key = 0; key < num_keys; key += 2 * kLanes) {
      const vf first = exp2_of_negative(sub(load(scores + key), set1(base)));
      const vf second = exp2_of_negative(sub(load(scores + key + kLanes), set1(base)));
      const Operand rounded = _mm512_cvtne2ps_pbh(second, first);
      store(weights + key / 2, _mm512_castsi512_ps((__m512i)rounded));
      total = accumulate(total, rounded, ones);
    }
    store(sums, total);
  }
};
#endif

static constexpr int vectors_of(int columns) { return (columns + static_cast<int>(kLanes) - 1) / kLanes; }

// Lines of words as twice as many lines of floats. num_words, of a line, is a multiple of 8.
static void widen_lines(const float* from, int64_t num_lines, int64_t num_words, float* to) {
  for (int64_t line = 0; line < num_lines; ++line, from += num_words, to += 2 * num_words) {
    for (int64_t i = 0; i < num_words; i += kLanes) {
      const int64_t count = lesser(kLanes, num_words - i);
      const vf words = count == kLanes ? load(from + i) : load_partial(from + i, count);
      store_as(to, false, i, WidenedMath::operand(words, 0), count);
      store_as(to, false, num_words + i, WidenedMath::operand(words, 1), count);
    }
  }
}

// Of kColumns columns: whole vectors, or 8 columns of a vector of 16.
template <int kColumns>
static inline vf load_words(const float* p) {
  if constexpr (kColumns < kLanes) return load_partial(p, kColumns);
  return load(p);
}

// Adds one step of depth: operands of columns times a[row * a_row].
template <class Math, int kRows, int kVectors>
static inline __attribute__((always_inline)) void add_step(const float* a, int64_t a_row,
                                                           const typename Math::Operand (&columns)[kVectors],
                                                           vf (&sums)[kRows][kVectors]) {
#pragma GCC unroll 6
  for (int row = 0; row < kRows; ++row) {
    const typename Math::Operand value = Math::spread(a + row * a_row);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[row][v] = Math::accumulate(sums[row][v], value, columns[v]);
  }
}

// Adds `num_words` words of depth. Vector v of columns of a word of depth is at place(word, v); a's element (row, step) is
// a[row * a_row + step * a_step].
template <class Math, int kRows, int kColumns, int kVectors, class Place>
static inline __attribute__((always_inline)) void multiply(const float* a, int64_t a_row, int64_t a_step,
                                                           int64_t num_words, Place place, vf (&sums)[kRows][kVectors],
                                                           PanelsAhead& ahead) {
  typename Math::Operand columns[kVectors];
  for (int64_t word = 0; word < num_words; ++word) {
    ahead.fetch<(kColumns + 15) / 16>();
#pragma GCC unroll 2
    for (int step = 0; step < Math::kWordSteps; ++step) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) columns[v] = Math::operand(load_words<kColumns>(place(word, v)), step);
      add_step<Math, kRows, kVectors>(a + (word * Math::kWordSteps + step) * a_step, a_row, columns, sums);
    }
  }
}

// scores [kRows][kTileKeys] of a block of queries against the first num_keys keys of a tile, and up to kColumns more.
template <class Math, int kRows, int kColumns>
static void score_rows(const float* queries, const float* const* panels, int64_t num_words, int64_t num_keys,
                       float* scores, PanelsAhead& ahead) {
  constexpr int kVectors = vectors_of(kColumns);
  for (int64_t first = 0; first < num_keys; first += kColumns) {
    const float* columns[kVectors];
    vf sums[kRows][kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const int64_t column = first + v * kLanes;
      columns[v] = panels[column / kPanelSlots] + column % kPanelSlots;
    }
#pragma GCC unroll 24
    for (int i = 0; i < kRows * kVectors; ++i) sums[i / kVectors][i % kVectors] = zero();
    const auto place = [&](int64_t word, int v) { return columns[v] + word * kPanelSlots; };
    multiply<Math, kRows, kColumns>(queries, 1, kBlockQueries, num_words, place, sums, ahead);
#pragma GCC unroll 24
    for (int i = 0; i < kRows * kVectors; ++i) {
      store(scores + (i / kVectors) * kTileKeys + first + (i % kVectors) * kLanes, sums[i / kVectors][i % kVectors]);
    }
  }
}

// What a tile's values are added to: out [rows] = out * rescale + weights * values, rows of out are out_row apart.
struct ValueSums {
  const float* weights;        // [rows][kTileKeys]
  const float* const* panels;  // of the tile
  int64_t head_dim, num_keys;  // keys after num_keys have weight 0, and their values are not looked at
  float* out;
  int64_t out_row;
  const float* rescale;
};

// kColumns columns of the values.
template <class Math, int kRows, int kColumns>
static inline __attribute__((always_inline)) void add_value_columns(const ValueSums& to, int64_t column,
                                                                    PanelsAhead& ahead) {
  constexpr int kVectors = vectors_of(kColumns);
  constexpr int64_t kPanelWords = kPanelSlots / Math::kWordNumbers;
  vf sums[kRows][kVectors];
#pragma GCC unroll 24
  for (int i = 0; i < kRows * kVectors; ++i) {
    const int row = i / kVectors, v = i % kVectors;
    sums[row][v] = mul(load(to.out + row * to.out_row + column + v * kLanes), set1(to.rescale[row]));
  }
  const float* const* panels = to.panels;
  const int64_t head_dim = to.head_dim, begin = kPanelWords * head_dim + column;
  const auto place = [=](int64_t word, int v) {
    const float* line = panels[word / kPanelWords] + begin + word % kPanelWords * head_dim;
    return line + v * kLanes;
  };
  const int64_t num_words = to.num_keys / Math::kWordNumbers;
  multiply<Math, kRows, kColumns>(to.weights, kTileKeys, 1, num_words, place, sums, ahead);
  if (to.num_keys % Math::kWordNumbers != 0) {
    // The slot after an odd number of keys may hold anything.
    typename Math::Operand last[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) last[v] = Math::first_number(load_words<kColumns>(place(num_words, v)));
    add_step<Math, kRows, kVectors>(to.weights + num_words * Math::kWordSteps, kTileKeys, last, sums);
  }
#pragma GCC unroll 24
  for (int i = 0; i < kRows * kVectors; ++i) {
    const int row = i / kVectors, v = i % kVectors;
    store(to.out + row * to.out_row + column + v * kLanes, sums[row][v]);
  }
}

// All columns from `column` on, kColumns at once, and what is left after them in halves.
template <class Math, int kRows, int kColumns>
static inline void add_values(const ValueSums& to, int64_t column, PanelsAhead& ahead) {
  for (; column + kColumns <= to.head_dim; column += kColumns) {
    add_value_columns<Math, kRows, kColumns>(to, column, ahead);
  }
  if constexpr (kColumns > 8) {
    if (column < to.head_dim) add_values<Math, kRows, kColumns / 2>(to, column, ahead);
  }
}

}  // namespace HEADSTART_ISA_NAMESPACE
}  // namespace headstart
