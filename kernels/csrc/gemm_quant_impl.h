// Tiles on weights that stay in blocks of 32 (q8_0, q4_1). Layout: packed_weight.h.
//
// A row of x becomes whole numbers of 16 bits with one scale, so that a block's sum of q * x is one of integers: exact,
// whatever the order, with twice the multiplications of float32 in an instruction. Then output += d * sum, and for q4_1
// output += m * (sum of x), block after block: only these round. Rounding x to 1/32767 of its row's largest moves a
// product less than rounding it to bf16 does, for no number of a row is more than sqrt(k) times their root mean square.
// Included by gemm_impl.h.
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

// One row of x = scale * q, to its lines of QuantisedX. An infinity or NaN makes the scale NaN.
static void quantise_row(const float* x, const QuantisedX& to, int64_t row) {
  const vi magnitude = set1_int(0x7fffffff);
  vi largest_bits = set1_int(0);  // floats without sign are in the order of their bits, NaN above all
  for (int64_t i = 0; i < to.num_blocks * kQuantBlock; i += kLanes) {
    largest_bits = max_int(largest_bits, and_int(as_int(load(x + i)), magnitude));
  }
  const float largest = float_of_bits(static_cast<uint32_t>(reduce_max_int(largest_bits)));
  const bool is_finite = largest - largest == 0;
  // Below 2^-100 the factor would overflow; what such a row adds to a float of ordinary size is nothing.
  const float factor = is_finite && largest > 0x1p-100f ? 32767.0f / largest : 0.0f;
  to.scales[row] = is_finite ? largest / 32767.0f : largest - largest;
  for (int64_t b = 0; b < to.num_blocks; ++b) {
    int16_t* q = to.block(b, row);
    vi sum = set1_int(0);
#pragma GCC unroll 16
    for (int64_t i = 0; i < kQuantBlock; i += kLanes) {
      const vi rounded = to_int(mul(load(x + b * kQuantBlock + i), set1(factor)));
      store_words(q + i, rounded);
      sum = add_int(sum, rounded);
    }
    *to.sums(b, row) = static_cast<float>(reduce_add_int(sum));
  }
}

// How the quants of a block lie: vector `v` of pair kPair is kLanes columns, each with two 16-bit weights.
struct Q41Pairs {
  static constexpr bool kHasMinimum = true;
  static constexpr int64_t kScaleBytes = kGroupColumns * 4;

  template <int kPair>
  static inline vi get(const uint8_t* quants, int64_t v) {
    const vi words = shift_right_words<kPair % 4 * 4>(load_int(quants + kPair / 4 * 64 + v * kLanes * 4));
    return kPair % 4 == 3 ? words : and_int(words, set1_int(0x000f000f));
  }
};

struct Q80Pairs {
  static constexpr bool kHasMinimum = false;
  static constexpr int64_t kScaleBytes = kGroupColumns * 2;

  template <int kPair>
  static inline vi get(const uint8_t* quants, int64_t v) {
    return load_bytes_as_words(quants + kPair * kGroupColumns * 2 + v * kLanes * 2);
  }
};

template <int kRows, int kGroups>
struct IntTile {
  static constexpr int kVectors = kGroups * kVectorsPerGroup;
  vi sum[kRows][kVectors];
};

// x is [kRows][32].
template <typename Pairs, int kPair, int kRows, int kGroups>
__attribute__((always_inline)) static inline void add_pairs(IntTile<kRows, kGroups>& block, const uint8_t* quants,
                                                            int64_t group_bytes, const int16_t* x) {
  vi weights[block.kVectors];
#pragma GCC unroll 16
  for (int v = 0; v < block.kVectors; ++v) {
    weights[v] = Pairs::template get<kPair>(quants + v / kVectorsPerGroup * group_bytes, v % kVectorsPerGroup);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    int32_t pair;
    std::memcpy(&pair, x + r * kQuantBlock + 2 * kPair, sizeof(pair));
#pragma GCC unroll 16
    for (int v = 0; v < block.kVectors; ++v) {
      block.sum[r][v] = dot_words(kPair == 0 ? set1_int(0) : block.sum[r][v], set1_int(pair), weights[v]);
    }
  }
  if constexpr (kPair + 1 < kQuantBlock / 2) add_pairs<Pairs, kPair + 1>(block, quants, group_bytes, x);
}

// The outputs so far, in memory: the integers of a block need the registers.
template <int kRows, int kGroups>
struct Sums {
  static constexpr int kVectors = kGroups * kVectorsPerGroup;
  alignas(64) float values[kRows][kVectors][kLanes];
};

// sums += scale * block, and where there are minima sums += minimum * (sum of x). x_sums is [kRows].
template <bool kHasMinimum, int kRows, int kGroups>
static inline void add_block(Sums<kRows, kGroups>& sums, const IntTile<kRows, kGroups>& block, const uint8_t* scales,
                             int64_t group_bytes, const float* x_sums) {
#pragma GCC unroll 16
  for (int v = 0; v < sums.kVectors; ++v) {
    const uint8_t* of_vector = scales + v / kVectorsPerGroup * group_bytes + v % kVectorsPerGroup * kLanes * 2;
    const vf scale = load_half(of_vector);
    const vf minimum = kHasMinimum ? load_half(of_vector + kGroupColumns * 2) : zero();
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      vf sum = fma(scale, to_float(block.sum[r][v]), load(sums.values[r][v]));
      if (kHasMinimum) sum = fma(minimum, set1(x_sums[r]), sum);
      store(sums.values[r][v], sum);
    }
  }
}

template <typename Pairs>
struct QuantWeights {
  // More rows than with plain weights, for each tile unpacks them anew.
  static constexpr int kMaxRows = kLanes == 16 ? 8 : kMaxTileRows, kMaxGroups = kLanes == 16 ? 6 : 3;

  template <int kRows, int kGroups>
  static inline void run(Tile<kRows, kGroups>& tile, const GemmCall& call, int64_t row, const uint8_t* w,
                         const Ahead& ahead) {
    const QuantisedX& x = call.quantised;
    const int64_t group_bytes = call.weight->group_bytes, block_bytes = call.weight->block_bytes();
    Sums<kRows, kGroups> sums{};
    for (int64_t b = 0; b < x.num_blocks; ++b) {
      asm volatile("" ::"r"(&sums) : "memory");  // else the compiler moves sums through registers all the time
      const uint8_t* scales = w + b * block_bytes;
      for (int64_t line = 0; line < block_bytes; line += 64) fetch(ahead, group_bytes, b * block_bytes + line);
      IntTile<kRows, kGroups> block;
      add_pairs<Pairs, 0>(block, scales + Pairs::kScaleBytes, group_bytes, x.block(b, row));
      add_block<Pairs::kHasMinimum>(sums, block, scales, group_bytes, x.sums(b, row));
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < tile.kVectors; ++v) tile.sum[r][v] = mul(load(sums.values[r][v]), set1(x.scales[row + r]));
    }
  }
};

using Q80Weights = QuantWeights<Q80Pairs>;
using Q41Weights = QuantWeights<Q41Pairs>;

}  // namespace HEADSTART_ISA_NAMESPACE
}  // namespace headstart
