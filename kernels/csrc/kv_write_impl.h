// The columns of K/V panels: puts one step's K and V where the slots say.
#pragma once

#include "attention.h"
#include "norm_impl.h"

namespace headstart {
namespace HEADSTART_ISA_NAMESPACE {

static inline int64_t panel_bytes(const KvLayer& kv) { return 2 * kPanelSlots * kv.head_dim * (kv.is_bf16 ? 2 : 4); }

// T: uint16_t for bf16, else float.
template <typename T>
static inline T* panel_of(const KvLayer& kv, int64_t slot, int64_t kv_head) {
  return static_cast<T*>(kv.data) + (slot / kPanelSlots * kv.num_kv_heads + kv_head) * 2 * kPanelSlots * kv.head_dim;
}

// Numbers that share a word: two of bf16.
template <typename T>
static constexpr int64_t kWordNumbers = 4 / sizeof(T);

// `count` numbers from d on (whole words) of one key and value. Writes no byte of another column: others may be at it.
template <typename T>
static inline void write_part(T* panel, int64_t column, int64_t head_dim, int64_t d, int64_t count, const T* key,
                              const T* value) {
  constexpr int64_t kNumbers = kWordNumbers<T>;
  T* keys = panel + (d / kNumbers * kPanelSlots + column) * kNumbers;
  T* values = panel + kPanelSlots * head_dim + (column / kNumbers * head_dim + d) * kNumbers + column % kNumbers;
  for (int64_t i = 0; i < count; i += kNumbers) std::memcpy(keys + i * kPanelSlots, key + i, 4);
  for (int64_t i = 0; i < count; ++i) values[i * kNumbers] = value[i];
}

template <typename T>
static inline void write_column(T* panel, int64_t column, int64_t head_dim, const T* key, const T* value) {
  write_part(panel, column, head_dim, 0, head_dim, key, value);
}

template <typename T>
static inline void read_column(const T* panel, int64_t column, int64_t head_dim, T* key, T* value) {
  constexpr int64_t kNumbers = kWordNumbers<T>;
  const T* values = panel + kPanelSlots * head_dim + column / kNumbers * head_dim * kNumbers + column % kNumbers;
  for (int64_t d = 0; d < head_dim; ++d) {
    key[d] = panel[(d / kNumbers * kPanelSlots + column) * kNumbers + d % kNumbers];
    value[d] = values[d * kNumbers];
  }
}

// k and v are [num_kv_heads * head_dim] of one token; slot is page * page_size + offset, or -1: nothing is written.
static void write_kv(const KvLayer& kv, const float* k, const float* v, int64_t slot) {
  if (slot < 0) return;
  const int64_t head_dim = kv.head_dim, column = slot % kPanelSlots;
  for (int64_t head = 0; head < kv.num_kv_heads; ++head, k += head_dim, v += head_dim) {
    if (!kv.is_bf16) {
      write_column(panel_of<float>(kv, slot, head), column, head_dim, k, v);
      continue;
    }
    for (int64_t d = 0; d < head_dim; d += kLanes) {
      const int64_t count = lesser(kLanes, head_dim - d);
      uint16_t key[kLanes], value[kLanes];
      store_bf16(key, load_partial(k + d, count));
      store_bf16(value, load_partial(v + d, count));
      write_part(panel_of<uint16_t>(kv, slot, head), column, head_dim, d, count, key, value);
    }
  }
}

}  // namespace HEADSTART_ISA_NAMESPACE
}  // namespace headstart
