#include "packed_row.h"

#include <cstring>

#include "bf16.h"

namespace headstart {
namespace {

float half_at(const uint8_t* halves, int64_t index) {
  uint16_t bits;
  std::memcpy(&bits, halves + index * 2, sizeof(bits));
  return float_of_half(bits);
}

void unpack_f32(const uint8_t* group, int64_t column, int64_t k, float* out) {
  const float* values = reinterpret_cast<const float*>(group) + column;
  for (int64_t i = 0; i < k; ++i) out[i] = values[i * kGroupColumns];
}

void unpack_bf16(const uint8_t* group, int64_t column, int64_t k, float* out) {
  const uint16_t* values = reinterpret_cast<const uint16_t*>(group) + column * 2;
  for (int64_t i = 0; i < k; ++i) out[i] = float_of_bf16(values[i / 2 * kGroupColumns * 2 + i % 2]);
}

void unpack_q8_0(const uint8_t* block, int64_t column, float* out) {
  const float scale = half_at(block, column);
  const int8_t* quants = reinterpret_cast<const int8_t*>(block) + kGroupColumns * 2 + column * 2;
  for (int64_t i = 0; i < kQuantBlock; ++i) out[i] = scale * quants[i / 2 * kGroupColumns * 2 + i % 2];
}

void unpack_q4_1(const uint8_t* block, int64_t column, float* out) {
  const float scale = half_at(block, column), minimum = half_at(block, kGroupColumns + column);
  const uint8_t* quants = block + kGroupColumns * 4 + column * 4;
  for (int64_t i = 0; i < kQuantBlock; ++i) {
    const int64_t bit = i % 8 / 2 * 4 + i % 2 * 16;
    const int nibble = quants[i / 8 * kGroupColumns * 4 + bit / 8] >> bit % 8 & 15;
    out[i] = scale * static_cast<float>(nibble) + minimum;
  }
}

}  // namespace

void unpack_row(const PackedWeight& weight, int64_t row, float* out) {
  const uint8_t* group = weight.group(row / kGroupColumns);
  const int64_t column = row % kGroupColumns;
  if (weight.type == PackedWeight::Type::f32) return unpack_f32(group, column, weight.k, out);
  if (weight.type == PackedWeight::Type::bf16) return unpack_bf16(group, column, weight.k, out);
  for (int64_t b = 0; b < weight.k / kQuantBlock; ++b) {
    const uint8_t* block = group + b * weight.block_bytes();
    if (weight.type == PackedWeight::Type::q8_0) {
      unpack_q8_0(block, column, out + b * kQuantBlock);
    } else {
      unpack_q4_1(block, column, out + b * kQuantBlock);
    }
  }
}

}  // namespace headstart
