// The largest of many numbers.
#pragma once

#include "simd.h"

namespace headstart {
namespace HEADSTART_ISA_NAMESPACE {

// Index of the first NaN, else of the largest value; the lowest index on ties. count >= 1.
// One pass finds the largest value a vector at a time, a second one its place.
static int64_t argmax(const float* x, int64_t count) {
  vf largest[4] = {set1(x[0]), set1(x[0]), set1(x[0]), set1(x[0])};
  vf sum = zero();  // x - x is 0 for numbers and NaN for NaN and infinity: a cheap look for what needs care
  int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    for (int64_t j = 0; j < 4; ++j) {
      const vf value = load(x + i + j * kLanes);
      largest[j] = max(largest[j], value);
      sum = add(sum, sub(value, value));
    }
  }
  float best = reduce_max(max(max(largest[0], largest[1]), max(largest[2], largest[3])));
  float check = reduce_add(sum);
  for (int64_t k = i; k < count; ++k) {
    best = x[k] > best ? x[k] : best;
    check += x[k] - x[k];
  }
  if (check != 0.0f) {
    int64_t place = 0;
    for (int64_t k = 0; k < count; ++k) {
      if (x[k] != x[k]) return k;
      if (x[k] > x[place]) place = k;
    }
    return place;
  }
  int64_t place = 0;
  while (x[place] != best) ++place;
  return place;
}

}  // namespace HEADSTART_ISA_NAMESPACE
}  // namespace headstart
