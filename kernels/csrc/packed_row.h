// One row of a packed weight as float32: the embedding of a token, read from the matrix that also gives the logits.
#pragma once

#include <cstdint>

#include "packed_weight.h"

namespace headstart {

// out [weight.k] = row `row` of the [n][k] matrix. row must lie in [0, n).
void unpack_row(const PackedWeight& weight, int64_t row, float* out);

}  // namespace headstart
