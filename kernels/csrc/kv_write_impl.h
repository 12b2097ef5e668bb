// Puts one step's K and V where the slots say.
#pragma once

#include "attention.h"
#include "norm_impl.h"

namespace headstart {
namespace HEADSTART_ISA_NAMESPACE {

// k and v are [num_kv_heads * head_dim] of one token; slot is page * page_size + offset, or -1: nothing is written.
static void write_kv(const KvLayer& kv, const float* k, const float* v, int64_t slot) {
  if (slot < 0) return;
  const int64_t width = kv.num_kv_heads * kv.head_dim;
  const int64_t key_place = (slot / kv.page_size * 2 * kv.page_size + slot % kv.page_size) * width;
  const int64_t value_place = key_place + kv.page_size * width;
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t count = lesser(kLanes, width - i);
    store_as(kv.data, kv.is_bf16, key_place + i, load_partial(k + i, count), count);
    store_as(kv.data, kv.is_bf16, value_place + i, load_partial(v + i, count), count);
  }
}

}  // namespace HEADSTART_ISA_NAMESPACE
}  // namespace headstart
