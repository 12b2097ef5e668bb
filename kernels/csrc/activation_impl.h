// The gate of a feed-forward block.
#pragma once

#include "norm_impl.h"

namespace headstart {
namespace HEADSTART_ISA_NAMESPACE {

// out = gate / (1 + e^-gate) * up
static void silu_mul(const float* gate, const float* up, int64_t count, void* out, bool is_out_bf16) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t here = lesser(kLanes, count - i);
    const vf g = load_partial(gate + i, here);
    const vf activated = div(g, add(set1(1.0f), exp(sub(zero(), g))));
    store_as(out, is_out_bf16, i, mul(activated, load_partial(up + i, here)), here);
  }
}

}  // namespace HEADSTART_ISA_NAMESPACE
}  // namespace headstart
