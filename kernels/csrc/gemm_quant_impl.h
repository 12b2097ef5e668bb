// Tiles on weights that stay in blocks of 32 (q8_0, q4_1), dequantised in registers. Layout: packed_weight.h.
//
// A block's sum of q * x is one chain over its k; then output += d * sum, and for q4_1 output += m * (sum of x), block
// after block. The small integers are exact in bf16 and float, so only the chain rounds. Included by gemm_impl.h.
#pragma once

#include "gemm_tile_impl.h"

namespace headstart {
namespace HEADSTART_ISA_NAMESPACE {

// kLanes half floats.
static inline vf load_half(const uint8_t* p) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__AVX2__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  uint16_t halves[kLanes];
  std::memcpy(halves, p, sizeof(halves));
  return vf{float_of_half(halves[0]), float_of_half(halves[1]), float_of_half(halves[2]), float_of_half(halves[3])};
#endif
}

#if defined(__AVX512BF16__)

using QuantX = uint16_t;
using PairWeights = __m512i;

// Pair kPair of q4_1: a nibble is the number of its bf16 in a table. The index has a fifth bit, which belongs to the
// next nibble: the table's second half repeats the first.
struct Q41Pairs {
  static constexpr int kRowFactor = 1;
  static constexpr int64_t kScaleBytes = kGroupColumns * 4;

  static inline __m512i table() {
    const __m256i low = _mm256_setr_epi16(0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,  //
                                          0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170);
    return _mm512_broadcast_i64x4(low);
  }

  template <int kPair>
  static inline __m512i get(const uint8_t* quants) {
    const __m512i words = _mm512_loadu_si512(quants + kPair / 4 * 64);
    return _mm512_permutexvar_epi16(_mm512_srli_epi16(words, kPair % 4 * 4), table());
  }
};

struct Q80Pairs {
  static constexpr int kRowFactor = kLanes == 16 ? 2 : 1;
  static constexpr int64_t kScaleBytes = kGroupColumns * 2;

  template <int kPair>
  static inline __m512i get(const uint8_t* quants) {
    const __m128i* bytes = reinterpret_cast<const __m128i*>(quants + kPair * kGroupColumns * 2);
    const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes)));
    const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes + 1)));
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
  }
};

template <typename Pairs, int kPair, int kRows, int kGroups>
static inline void add_pair(Tile<kRows, kGroups>& block, const uint8_t* quants, int64_t group_bytes, const uint16_t* x,
                            int64_t ldx) {
  __m512i weights[kGroups];
#pragma GCC unroll 16
  for (int g = 0; g < kGroups; ++g) weights[g] = Pairs::template get<kPair>(quants + g * group_bytes);
  dot_add(block, weights, x + 2 * kPair, ldx, false);
}

#else

using QuantX = float;

struct Q41Pairs {
  static constexpr int kRowFactor = 1;
  static constexpr int64_t kScaleBytes = kGroupColumns * 4;

  template <int kPair, bool kOdd>
  static inline vf get(const uint8_t* quants, int64_t first_column) {
    const vi lanes = load_int(quants + kPair / 4 * 64 + first_column * 4);
    return to_float(and_int(shift_right<kPair % 4 * 4 + kOdd * 16>(lanes), set1_int(15)));
  }
};

struct Q80Pairs {
  static constexpr int kRowFactor = kLanes == 16 ? 2 : 1;
  static constexpr int64_t kScaleBytes = kGroupColumns * 2;

  template <int kPair, bool kOdd>
  static inline vf get(const uint8_t* quants, int64_t first_column) {
    const vi words = load_words(quants + kPair * kGroupColumns * 2 + first_column * 2);
    return to_float(shift_right_signed<24>(shift_left<kOdd ? 16 : 24>(words)));
  }

  // kLanes 16-bit words into 32-bit lanes: the even k in the low byte, the odd k above it.
  static inline vi load_words(const uint8_t* p) {
    return shift_right<16>(as_int(load_bf16(reinterpret_cast<const uint16_t*>(p))));
  }
};

template <typename Pairs, int kPair, bool kOdd, int kRows, int kGroups>
static inline void add_one(Tile<kRows, kGroups>& block, const uint8_t* quants, int64_t group_bytes, const float* x,
                           int64_t ldx) {
  vf weights[block.kVectors];
#pragma GCC unroll 16
  for (int v = 0; v < block.kVectors; ++v) {
    const uint8_t* group = quants + v / kVectorsPerGroup * group_bytes;
    weights[v] = Pairs::template get<kPair, kOdd>(group, v % kVectorsPerGroup * kLanes);
  }
  multiply_add(block, weights, x + 2 * kPair + kOdd, ldx);
}

template <typename Pairs, int kPair, int kRows, int kGroups>
static inline void add_pair(Tile<kRows, kGroups>& block, const uint8_t* quants, int64_t group_bytes, const float* x,
                            int64_t ldx) {
  add_one<Pairs, kPair, false>(block, quants, group_bytes, x, ldx);
  add_one<Pairs, kPair, true>(block, quants, group_bytes, x, ldx);
}

#endif

template <typename Pairs, int kPair, int kRows, int kGroups>
static inline void add_pairs(Tile<kRows, kGroups>& block, const uint8_t* quants, int64_t group_bytes, const QuantX* x,
                             int64_t ldx) {
  add_pair<Pairs, kPair>(block, quants, group_bytes, x, ldx);
  if constexpr (kPair + 1 < kQuantBlock / 2) add_pairs<Pairs, kPair + 1>(block, quants, group_bytes, x, ldx);
}

// sum += scale * block, for the scales at `scales` in each group.
template <int kRows, int kGroups, typename Factor>
static inline void add_scaled(Tile<kRows, kGroups>& sum, const uint8_t* scales, int64_t group_bytes, Factor factor) {
#pragma GCC unroll 16
  for (int v = 0; v < sum.kVectors; ++v) {
    const vf scale = load_half(scales + v / kVectorsPerGroup * group_bytes + v % kVectorsPerGroup * kLanes * 2);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) sum.sum[r][v] = fma(scale, factor(r, v), sum.sum[r][v]);
  }
}

template <typename Pairs, bool kHasMinimum>
struct QuantWeights {
  using X = QuantX;
  // Fewer groups than with plain weights, since unpacking takes registers; more rows where it is dear.
  static constexpr int kMaxRows = kMaxTileRows * Pairs::kRowFactor;
  static constexpr int kMaxGroups = kHasBf16Dot ? 6 : 3;

  template <int kRows, int kGroups>
  static inline void run(Tile<kRows, kGroups>& tile, const GemmCall& call, int64_t row, const uint8_t* w,
                         const Ahead& ahead) {
    const int64_t group_bytes = call.weight->group_bytes, num_blocks = call.weight->k / kQuantBlock;
    const int64_t block_bytes = group_bytes / num_blocks;
    const QuantX* x = static_cast<const QuantX*>(call.x) + row * call.ldx;
    for (int64_t b = 0; b < num_blocks; ++b) {
      const uint8_t* scales = w + b * block_bytes;
      for (int64_t line = 0; line < block_bytes; line += 64) fetch(ahead, group_bytes, b * block_bytes + line);
      Tile<kRows, kGroups> block;
      block.clear();
      add_pairs<Pairs, 0>(block, scales + Pairs::kScaleBytes, group_bytes, x + b * kQuantBlock, call.ldx);
      add_scaled(tile, scales, group_bytes, [&](int r, int v) { return block.sum[r][v]; });
      if constexpr (kHasMinimum) {
        const float* sums = call.block_sums + row * num_blocks + b;
        const uint8_t* minima = scales + kGroupColumns * 2;
        add_scaled(tile, minima, group_bytes, [&](int r, int) { return set1(sums[r * num_blocks]); });
      }
    }
  }
};

using Q80Weights = QuantWeights<Q80Pairs, false>;
using Q41Weights = QuantWeights<Q41Pairs, true>;

// The sum of each block of a row: x is what gemm takes here, bf16 or float. k is a multiple of 32.
static void sum_blocks(const void* x, float* sums, int64_t k) {
  for (int64_t b = 0; b < k / kQuantBlock; ++b) {
    vf sum = zero();
    for (int64_t i = b * kQuantBlock; i < (b + 1) * kQuantBlock; i += kLanes) {
#if defined(__AVX512BF16__)
      sum = add(sum, load_bf16(static_cast<const uint16_t*>(x) + i));
#else
      sum = add(sum, load(static_cast<const float*>(x) + i));
#endif
    }
    sums[b] = reduce_add(sum);
  }
}

}  // namespace HEADSTART_ISA_NAMESPACE
}  // namespace headstart
