// RMS norm.
#pragma once

#include "simd.h"

namespace headstart {
namespace HEADSTART_ISA_NAMESPACE {

// Four chains of sums, folded in one order: the result depends on the row and its length alone.
static inline float sum_of_squares(const float* x, int64_t count) {
  vf sums[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    for (int64_t j = 0; j < 4; ++j) {
      const vf value = load(x + i + j * kLanes);
      sums[j] = fma(value, value, sums[j]);
    }
  }
  for (; i < count; i += kLanes) {
    const vf value = load_partial(x + i, lesser(kLanes, count - i));
    sums[0] = fma(value, value, sums[0]);
  }
  return reduce_add(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

static inline void store_as(void* to, bool is_bf16, int64_t i, vf value, int64_t count) {
  if (is_bf16) {
    uint16_t* place = static_cast<uint16_t*>(to) + i;
    count == kLanes ? store_bf16(place, value) : store_bf16_partial(place, value, count);
  } else {
    float* place = static_cast<float*>(to) + i;
    count == kLanes ? store(place, value) : store_partial(place, value, count);
  }
}

// out = weight * x / sqrt(mean(x^2) + eps) (Zhang and Sennrich, 2019). out may be x itself when it is float32.
static void rms_norm(const float* x, const float* weight, float eps, int64_t count, void* out, bool is_out_bf16) {
  const float mean = sum_of_squares(x, count) / static_cast<float>(count);
  const vf factor = set1(1.0f / __builtin_sqrtf(mean + eps));
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t here = lesser(kLanes, count - i);
    const vf scaled = mul(load_partial(x + i, here), factor);
    store_as(out, is_out_bf16, i, mul(scaled, load_partial(weight + i, here)), here);
  }
}

}  // namespace HEADSTART_ISA_NAMESPACE
}  // namespace headstart
