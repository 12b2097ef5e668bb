// The arithmetic of attention: products of a few query rows with panels of keys or values, and the weights between them.
//
// A panel's element is a word of 32 bits: a float, or two bf16 that follow each other in depth. Each kind of arithmetic
// says how words become operands: as floats (FloatMath), as two floats one after the other (WidenedMath), or as pairs
// for the bf16 dot instruction (DotMath). An output element is one chain over depth in ascending order, whatever the
// number of rows and columns that are worked on together.
#pragma once

#include "attention_panels_impl.h"
#include "attention_softmax_impl.h"

namespace headstart {
namespace HEADSTART_ISA_NAMESPACE {

// 16 registers hold 6 x 2 vectors of sums beside the operands, 32 hold 6 x 4.
static constexpr int kMostColumns = (kLanes == 16 ? 4 : 2) * kLanes;

// A tile whose later half nobody sees is scored and weighed by half.
static constexpr int64_t kHalfTile = kTileKeys / 2;

struct FloatMath {
  using Number = float;                       // of the storage
  static constexpr int64_t kWordNumbers = 1;  // that follow each other in depth
  static constexpr int kWordSteps = 1;        // multiplications of a word
  using Operand = vf;
  static inline Operand operand(vf words, int) { return words; }
  static inline Operand first_number(vf words) { return words; }
  static inline Operand spread(const float* p) { return set1(*p); }
  static inline vf accumulate(vf sum, Operand a, Operand b) { return fma(a, b, sum); }

  // One query as words, head_dim / kWordNumbers * kWordSteps of them. head_dim is a multiple of 8.
  static inline void scale_query(float* to, const float* from, float scale, int64_t head_dim) {
    for (int64_t d = 0; d < head_dim; d += kLanes) {
      const int64_t count = lesser(kLanes, head_dim - d);
      store_partial(to + d, mul(load_partial(from + d, count), set1(scale)), count);
    }
  }

  // weights = 2^(scores - base) of num_keys keys, kHalfTile or all; sums [kStateLanes] = sums * rescale + weights.
  static inline void weigh(const float* scores, int64_t num_keys, float base, float* weights, float* sums,
                           float rescale) {
    constexpr int64_t kSums = kStateLanes / kLanes;
    vf total[kSums];
    for (int64_t i = 0; i < kSums; ++i) total[i] = zero();
    for (int64_t key = 0; key < num_keys; key += kStateLanes) {
      for (int64_t i = 0; i < kSums; ++i) {
        const vf value = exp2_of_negative(sub(load(scores + key + i * kLanes), set1(base)));
        store(weights + key + i * kLanes, value);
        total[i] = add(total[i], value);
      }
    }
    for (int64_t i = 0; i < kSums; ++i) {
      store(sums + i * kLanes, fma(load(sums + i * kLanes), set1(rescale), total[i]));
    }
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

  static inline void scale_query(float* to, const float* from, float scale, int64_t head_dim) {
    for (int64_t d = 0; d < head_dim; d += 2 * kLanes) {
      const int64_t low = lesser(kLanes, head_dim - d), high = lesser(kLanes, head_dim - d - low);
      const vf first = mul(load_partial(from + d, low), set1(scale));
      const vf second = mul(load_partial(from + d + low, high), set1(scale));
      const vf pairs = _mm512_castsi512_ps((__m512i)_mm512_cvtne2ps_pbh(second, first));
      store_partial(to + d / 2, pairs, (low + high) / 2);
    }
  }

  // The bits of 2^(score - base) for score <= base, relative error below 1.1e-4: a twentieth of what rounding to bf16 may
  // add. Below 2^-126 they are 0 or a subnormal number, which the dot instruction takes for 0; NaN for NaN of bf16.
  // As exp2_of_negative, but n is added to the exponent: the least x, -127, has 2^r = 1 and gives 0. Some sums are
  // written as products with one, for additions have units of their own that would be the slower ones.
  static inline vi weight_bits(vf score, vf base) {
    const vf one = set1(1.0f), magic = set1(12582912.0f);  // 1.5 * 2^23: leaves n in the lowest bits
    const vf x = max(set1(-127.0f), _mm512_fmsub_ps(score, one, base));
    const vf shifted = fma(x, one, magic);
    const vf r = sub(x, sub(shifted, magic));
    vf p = fma(r, set1(5.5008931492e-2f), set1(2.4221096616e-1f));
    p = fma(p, r, set1(6.9328292783e-1f));
    p = fma(p, r, one);
    return add_int(as_int(p), shift_left<23>(as_int(shifted)));
  }

  // The upper 16 bits of each lane, those of a first.
  static inline vi upper_halves(vi a, vi b) {
    alignas(64) static constexpr struct Odds {
      uint16_t values[32];
      constexpr Odds() : values() {
        for (int i = 0; i < 32; ++i) values[i] = static_cast<uint16_t>(2 * i + 1);
      }
    } odds;
    return _mm512_permutex2var_epi16(a, load_int(odds.values), b);
  }

  // The sums are of the rounded weights: what multiplies the values is what they are divided by.
  static inline void weigh(const float* scores, int64_t num_keys, float base, float* weights, float* sums,
                           float rescale) {
    const Operand ones = as_pairs(as_float(set1_int(0x3f803f80)));
    const vi half = set1_int(0x8000);
    vf total = zero();
    for (int64_t key = 0; key < num_keys; key += 2 * kLanes) {
      const vi first = add_int(weight_bits(load(scores + key), set1(base)), half);
      const vi second = add_int(weight_bits(load(scores + key + kLanes), set1(base)), half);
      const vf rounded = as_float(upper_halves(first, second));
      store(weights + key / 2, rounded);
      total = accumulate(total, as_pairs(rounded), ones);
    }
    store(sums, fma(load(sums), set1(rescale), total));
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

template <int kRows, int kVectors>
static inline void clear(vf (&sums)[kRows][kVectors]) {
#pragma GCC unroll 24
  for (int i = 0; i < kRows * kVectors; ++i) sums[i / kVectors][i % kVectors] = zero();
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

// Adds `num_words` words of depth. Vector v of columns of a word of depth is at place(word, v); a's rows are a_row apart.
template <class Math, int kRows, int kColumns, int kVectors, class Place>
static inline __attribute__((always_inline)) void multiply(const float* a, int64_t a_row, int64_t num_words,
                                                           Place place, vf (&sums)[kRows][kVectors],
                                                           PanelsAhead& ahead) {
  typename Math::Operand columns[kVectors];
  for (int64_t word = 0; word < num_words; ++word) {
    ahead.fetch<(kColumns + 15) / 16>();
#pragma GCC unroll 2
    for (int step = 0; step < Math::kWordSteps; ++step) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) columns[v] = Math::operand(load_words<kColumns>(place(word, v)), step);
      add_step<Math, kRows, kVectors>(a + word * Math::kWordSteps + step, a_row, columns, sums);
    }
  }
}

// scores [kRows][kTileKeys] of a block of queries against the first num_keys keys of a tile, and up to kColumns more.
// The lanes of largest[row] are the largest of the row's scores in their columns.
template <class Math, int kRows, int kColumns>
static inline __attribute__((always_inline)) void score_rows(const float* queries, int64_t depth,
                                                             const float* const* panels, int64_t num_words,
                                                             int64_t num_keys, float* scores, vf (&largest)[kRows],
                                                             PanelsAhead& ahead) {
  constexpr int kVectors = vectors_of(kColumns);
  for (int64_t first = 0; first < num_keys; first += kColumns) {
    const float* columns[kVectors];
    vf sums[kRows][kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const int64_t column = first + v * kLanes;
      columns[v] = panels[column / kPanelSlots] + column % kPanelSlots;
    }
    clear(sums);
    const auto place = [&](int64_t word, int v) { return columns[v] + word * kPanelSlots; };
    multiply<Math, kRows, kColumns>(queries, depth, num_words, place, sums, ahead);
#pragma GCC unroll 6
    for (int row = 0; row < kRows; ++row) {
      vf most = sums[row][0];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        store(scores + row * kTileKeys + first + v * kLanes, sums[row][v]);
        most = max(most, sums[row][v]);
      }
      largest[row] = first == 0 ? most : max(largest[row], most);
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
  clear(sums);
  const float* const* panels = to.panels;
  const int64_t head_dim = to.head_dim, begin = kPanelWords * head_dim + column;
  const auto place = [=](int64_t word, int v) {
    const float* line = panels[word / kPanelWords] + begin + word % kPanelWords * head_dim;
    return line + v * kLanes;
  };
  const int64_t num_words = to.num_keys / Math::kWordNumbers;
  multiply<Math, kRows, kColumns>(to.weights, kTileKeys, num_words, place, sums, ahead);
  if (to.num_keys % Math::kWordNumbers != 0) {
    // The slot after an odd number of keys may hold anything.
    typename Math::Operand last[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) last[v] = Math::first_number(load_words<kColumns>(place(num_words, v)));
    add_step<Math, kRows, kVectors>(to.weights + num_words * Math::kWordSteps, kTileKeys, last, sums);
  }
  // Only now are the sums so far needed, and what they are multiplied with.
#pragma GCC unroll 24
  for (int i = 0; i < kRows * kVectors; ++i) {
    const int row = i / kVectors, v = i % kVectors;
    float* out = to.out + row * to.out_row + column + v * kLanes;
    store(out, fma(load(out), set1(to.rescale[row]), sums[row][v]));
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
