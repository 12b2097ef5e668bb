#include "stored_rows.h"

#include <cstring>
#include <map>
#include <stdexcept>

#include "bf16.h"

namespace headstart {
namespace {

constexpr int64_t kBlock = 32;

template <typename T>
T at(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

void read_f32(const uint8_t* block, float* out) { *out = at<float>(block); }
void read_f16(const uint8_t* block, float* out) { *out = float_of_half(at<uint16_t>(block)); }
void read_bf16(const uint8_t* block, float* out) { *out = float_of_bf16(at<uint16_t>(block)); }

void read_q8_0(const uint8_t* block, float* out) {
  const float scale = float_of_half(at<uint16_t>(block));
  const int8_t* quants = reinterpret_cast<const int8_t*>(block + 2);
  for (int64_t i = 0; i < kBlock; ++i) out[i] = scale * static_cast<float>(quants[i]);
}

void read_q4_0(const uint8_t* block, float* out) {
  const float scale = float_of_half(at<uint16_t>(block));
  for (int64_t i = 0; i < kBlock / 2; ++i) {
    out[i] = scale * static_cast<float>((block[2 + i] & 15) - 8);
    out[i + kBlock / 2] = scale * static_cast<float>((block[2 + i] >> 4) - 8);
  }
}

void read_q4_1(const uint8_t* block, float* out) {
  const float scale = float_of_half(at<uint16_t>(block)), minimum = float_of_half(at<uint16_t>(block + 2));
  for (int64_t i = 0; i < kBlock / 2; ++i) {
    out[i] = scale * static_cast<float>(block[4 + i] & 15) + minimum;
    out[i + kBlock / 2] = scale * static_cast<float>(block[4 + i] >> 4) + minimum;
  }
}

template <int64_t kSize, int64_t kBytes, void (*kRead)(const uint8_t*, float*)>
constexpr StoredType type_of(const char* name) {
  return {name, kSize, kBytes, [](const uint8_t* blocks, int64_t num_blocks, float* out) {
            for (int64_t b = 0; b < num_blocks; ++b) kRead(blocks + b * kBytes, out + b * kSize);
          }};
}

}  // namespace

const StoredType& stored_type(const std::string& name) {
  static const std::map<std::string, StoredType> types = {
      {"f32", type_of<1, 4, read_f32>("f32")},
      {"f16", type_of<1, 2, read_f16>("f16")},
      {"bf16", type_of<1, 2, read_bf16>("bf16")},
      {"q8_0", type_of<kBlock, 2 + kBlock, read_q8_0>("q8_0")},
      {"q4_0", type_of<kBlock, 2 + kBlock / 2, read_q4_0>("q4_0")},
      {"q4_1", type_of<kBlock, 4 + kBlock / 2, read_q4_1>("q4_1")},
  };
  const auto found = types.find(name);
  if (found == types.end()) throw std::invalid_argument("type: must be f32, f16, bf16, q8_0, q4_0 or q4_1, is " + name);
  return found->second;
}

void StoredRows::read(int64_t row, float* out) const {
  type->read_blocks(data + row * row_bytes, row_bytes / type->block_bytes, out);
}

StoredRows stored_rows(const std::string& type, const uint8_t* data, int64_t num_rows, int64_t row_bytes) {
  const StoredType& found = stored_type(type);
  if (row_bytes % found.block_bytes != 0) throw std::invalid_argument("rows: must hold whole blocks of " + type);
  return {&found, data, num_rows, row_bytes};
}

}  // namespace headstart
