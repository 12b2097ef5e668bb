// bfloat16 and half floats one at a time, for packing and for tails. Rounds to nearest, ties to even; NaN stays NaN.
#pragma once

#include <cstdint>
#include <cstring>

namespace headstart {

static inline float float_of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

static inline float float_of_bf16(uint16_t bits) { return float_of_bits(static_cast<uint32_t>(bits) << 16); }

static inline float float_of_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_of_bits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  // 2^112 moves the exponent's bias, and gives subnormals their value.
  const float value = float_of_bits(magnitude << 13) * float_of_bits(0x77800000u);
  return sign != 0 ? -value : value;
}

// Exact, but infinite where the product is too large for a half.
static inline uint16_t half_times_minus_8(uint16_t half) {
  uint16_t magnitude = half & 0x7fffu;
  for (int i = 0; i < 3 && magnitude < 0x7c00u; ++i) {
    // A subnormal is its fraction alone, and when doubled it carries into the exponent as it should.
    const uint32_t doubled = magnitude < 0x400u ? magnitude * 2u : magnitude + 0x400u;
    magnitude = static_cast<uint16_t>(doubled < 0x7c00u ? doubled : 0x7c00u);
  }
  return static_cast<uint16_t>(magnitude | (~half & 0x8000u));
}

static inline uint16_t bf16_of_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace headstart
