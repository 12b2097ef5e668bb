// Lays out one tile of a K/V head as panels: keys [depth][kTileKeys], values [kTileKeys / per element][width].
// What lies in slots that the request does not use is never read.
#pragma once

#include "attention_math_impl.h"

namespace headstart {
namespace HEADSTART_ISA_NAMESPACE {

alignas(64) static const float kZeroRow[kMaxHeadsAtOnce * kMaxHeadDim] = {};

// Where the keys and values of each token of the tile lie: the unit's first head, the others follow.
struct TileRows {
  const void* keys[kTileKeys];
  const void* values[kTileKeys];
  int64_t count;  // that the request has; the pointers after them are to zeros
};

static void find_rows(const KvLayer& kv, const AttentionUnit& unit, int64_t tile, TileRows* rows) {
  const int64_t element = kv.is_bf16 ? 2 : 4;
  const int64_t token_bytes = kv.num_kv_heads * kv.head_dim * element;
  const int64_t plane_bytes = kv.page_size * token_bytes;
  const char* storage = static_cast<const char*>(kv.data) + unit.head_begin * kv.head_dim * element;
  const int64_t first = tile * kTileKeys;
  const int64_t count = rows->count = lesser(kTileKeys, unit.num_keys - first);
  int64_t page = first / kv.page_size, offset = first % kv.page_size;
  for (int64_t i = 0; i < count; ++page, offset = 0) {
    const char* key = storage + unit.pages[page] * 2 * plane_bytes + offset * token_bytes;
    for (; i < count && offset < kv.page_size; ++i, ++offset, key += token_bytes) {
      rows->keys[i] = key;
      rows->values[i] = key + plane_bytes;
    }
  }
  for (int64_t i = count; i < kTileKeys; ++i) rows->keys[i] = rows->values[i] = kZeroRow;
}

// Fetches a tile ahead of its use, a row at a time between other work: a core has only so many lines on their way, and
// asking for more waits. Into the L2 cache (2): in the L1 cache they would push out the tile at work.
struct RowsAhead {
  const TileRows* rows;
  int64_t row_bytes, row, end;

  inline void fetch(int64_t num_rows) {
    for (; num_rows > 0 && row < end; --num_rows, ++row) {
      for (int64_t byte = 0; byte < row_bytes; byte += 64) {
        __builtin_prefetch(static_cast<const char*>(rows->keys[row]) + byte, 0, 2);
        __builtin_prefetch(static_cast<const char*>(rows->values[row]) + byte, 0, 2);
      }
    }
  }
};

// kLanes words from each of kLanes rows, transposed: line j holds word j of every row. Words beyond `count` are zero.
#if defined(__AVX512F__)
static inline __attribute__((always_inline)) void transpose_words(const void* const* rows, int64_t word, int64_t count,
                                                                  vf (&lines)[16]) {
  const __mmask16 mask = mask_of(count);
  __m512i a[16], b[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) a[i] = _mm512_maskz_loadu_epi32(mask, static_cast<const int32_t*>(rows[i]) + word);
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    b[i] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88);
    b[i + 4] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
    b[i + 8] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
    b[i + 12] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    lines[i] = as_float(_mm512_shuffle_i32x4(b[i], b[i + 8], 0x88));
    lines[i + 4] = as_float(_mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0x88));
    lines[i + 8] = as_float(_mm512_shuffle_i32x4(b[i], b[i + 8], 0xdd));
    lines[i + 12] = as_float(_mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0xdd));
  }
}
#elif defined(__AVX2__)
static inline __attribute__((always_inline)) void transpose_words(const void* const* rows, int64_t word, int64_t count,
                                                                  vf (&lines)[8]) {
  vf a[8], b[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) a[i] = load_partial(static_cast<const float*>(rows[i]) + word, count);
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
    a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
    a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
    a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    lines[i] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x20);
    lines[i + 4] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x31);
  }
}
#else
static inline void transpose_words(const void* const* rows, int64_t word, int64_t count, vf (&lines)[kLanes]) {
  float words[kLanes][kLanes] = {};
  for (int64_t i = 0; i < kLanes; ++i) {
    float row[kLanes];
    std::memcpy(row, static_cast<const char*>(rows[i]) + word * 4, static_cast<size_t>(count) * 4);
    for (int64_t j = 0; j < count; ++j) words[j][i] = row[j];
  }
  for (int64_t j = 0; j < kLanes; ++j) lines[j] = load(words[j]);
}
#endif

// One head's tile as the arithmetic reads it.
struct Panels {
  int64_t head_dim, width;
  float *keys, *values;
};

// How K/V of one type in memory become the elements of one kind of arithmetic.
struct FloatKv {
  using Math = FmaMath;
  static constexpr int64_t kBytes = 4;
  static constexpr int64_t kLinesPerWord = 1;
  static inline void write_lines(float* to, vf words) { store(to, words); }
  static void write_values(const Panels& panels, const void* const* rows, int64_t num_keys, RowsAhead& ahead) {
    const int64_t head_dim = panels.head_dim, width = panels.width;
    float* to = panels.values;
    for (int64_t key = 0; key < num_keys; ++key, to += width) {
      if (key % 8 == 0) ahead.fetch(1);
      const float* row = static_cast<const float*>(rows[key]);
      int64_t d = 0;
      for (; d + kLanes <= head_dim; d += kLanes) store(to + d, load(row + d));
      for (; d < width; d += kLanes) {
        const int64_t count = greater(0, lesser(kLanes, head_dim - d));
        store(to + d, load_partial(row + lesser(d, head_dim), count));
      }
    }
  }
};

struct WidenedKv {
  using Math = FmaMath;
  static constexpr int64_t kBytes = 2;
  static constexpr int64_t kLinesPerWord = 2;
  static inline void write_lines(float* to, vf words) {
    store(to, as_float(shift_left<16>(as_int(words))));
    store(to + kTileKeys, as_float(and_int(as_int(words), set1_int(static_cast<int32_t>(0xffff0000u)))));
  }
  static void write_values(const Panels& panels, const void* const* rows, int64_t num_keys, RowsAhead& ahead) {
    const int64_t head_dim = panels.head_dim, width = panels.width;
    float* to = panels.values;
    for (int64_t key = 0; key < num_keys; ++key, to += width) {
      if (key % 8 == 0) ahead.fetch(1);
      const uint16_t* row = static_cast<const uint16_t*>(rows[key]);
      int64_t d = 0;
      for (; d + kLanes <= head_dim; d += kLanes) store(to + d, load_bf16(row + d));
      for (; d < width; d += kLanes) {
        const int64_t count = greater(0, lesser(kLanes, head_dim - d));
        store(to + d, load_bf16_partial(row + lesser(d, head_dim), count));
      }
    }
  }
};

#if defined(__AVX512BF16__)
struct PairedKv {
  using Math = DotMath;
  static constexpr int64_t kBytes = 2;
  static constexpr int64_t kLinesPerWord = 1;
  static inline void write_lines(float* to, vf words) { store(to, words); }
  static inline void write_pairs(float* to, __m512i even, __m512i odd) {
    alignas(64) static constexpr struct Order {
      uint16_t low[2 * kLanes], high[2 * kLanes];
      constexpr Order() : low(), high() {
        for (int i = 0; i < 2 * kLanes; ++i) {
          low[i] = static_cast<uint16_t>(i / 2 + i % 2 * 2 * kLanes);
          high[i] = static_cast<uint16_t>(low[i] + kLanes);
        }
      }
    } order;
    store(to, as_float(_mm512_permutex2var_epi16(even, load_int(order.low), odd)));
    store(to + kLanes, as_float(_mm512_permutex2var_epi16(even, load_int(order.high), odd)));
  }
  static void write_values(const Panels& panels, const void* const* rows, int64_t num_keys, RowsAhead& ahead) {
    const int64_t head_dim = panels.head_dim, width = panels.width;
    float* to = panels.values;
    int64_t d = 0;
    for (; d + 2 * kLanes <= head_dim; d += 2 * kLanes) {
      for (int64_t key = 0; key < num_keys; key += 2) {
        if (key % 16 == 0) ahead.fetch(1);
        const __m512i even = load_int(static_cast<const uint16_t*>(rows[key]) + d);
        const __m512i odd = load_int(static_cast<const uint16_t*>(rows[key + 1]) + d);
        write_pairs(to + key / 2 * width + d, even, odd);
      }
    }
    if (d == width) return;
    const __mmask32 mask = (1u << (head_dim - d)) - 1u;
    for (int64_t key = 0; key < num_keys; key += 2) {
      alignas(64) float tail[2 * kLanes];
      write_pairs(tail, _mm512_maskz_loadu_epi16(mask, static_cast<const uint16_t*>(rows[key]) + d),
                  _mm512_maskz_loadu_epi16(mask, static_cast<const uint16_t*>(rows[key + 1]) + d));
      for (int64_t i = 0; i < width - d; i += kLanes) store(to + key / 2 * width + d + i, load(tail + i));
    }
  }
};
#endif

// `offset`: bytes from the rows of the tile to the head's. Columns of keys that the request does not have may stay as
// they were: their scores are replaced, and their weights meet no value.
template <class Kv>
static void pack_tile(const TileRows& tile, int64_t offset, const Panels& to, RowsAhead& ahead) {
  TileRows rows;
  for (int64_t i = 0; i < kTileKeys; ++i) {
    rows.keys[i] = static_cast<const char*>(tile.keys[i]) + offset;
    rows.values[i] = static_cast<const char*>(tile.values[i]) + offset;
  }
  const int64_t num_words = to.head_dim * Kv::kBytes / 4;
  for (int64_t key = 0; key < tile.count; key += kLanes) {
    for (int64_t word = 0; word < num_words; word += kLanes) {
      const int64_t count = lesser(kLanes, num_words - word);
      vf lines[kLanes];
      ahead.fetch(1);
      transpose_words(rows.keys + key, word, count, lines);
      float* line = to.keys + word * Kv::kLinesPerWord * kTileKeys + key;
      for (int64_t j = 0; j < count; ++j) Kv::write_lines(line + j * Kv::kLinesPerWord * kTileKeys, lines[j]);
    }
  }
  Kv::write_values(to, rows.values, tile.count, ahead);
}

}  // namespace HEADSTART_ISA_NAMESPACE
}  // namespace headstart
