// Rotary position embedding (Su et al., 2021), in the halves convention: element i turns with element i + half.
#pragma once

#include "simd.h"

namespace headstart {
namespace HEADSTART_ISA_NAMESPACE {

// Turns each of num_heads heads of one token, x [num_heads][head_dim], in place. cos and sin are the table's lines of
// the token's position, [head_dim / 2].
static void rotate(float* x, const float* cos, const float* sin, int64_t num_heads, int64_t head_dim) {
  const int64_t half = head_dim / 2;
  for (int64_t head = 0; head < num_heads; ++head, x += head_dim) {
    for (int64_t i = 0; i < half; i += kLanes) {
      const int64_t count = lesser(kLanes, half - i);
      const vf first = load_partial(x + i, count), second = load_partial(x + half + i, count);
      const vf c = load_partial(cos + i, count), s = load_partial(sin + i, count);
      store_partial(x + i, sub(mul(first, c), mul(second, s)), count);
      store_partial(x + half + i, add(mul(second, c), mul(first, s)), count);
    }
  }
}

}  // namespace HEADSTART_ISA_NAMESPACE
}  // namespace headstart
