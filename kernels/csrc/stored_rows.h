// Rows of numbers as model files store them, and how to read one as floats: exact for every type.
//
//   f32, f16, bf16   plain numbers
//   q8_0             blocks of 32: a half scale d, 32 int8;           w = d * q
//   q4_0             blocks of 32: a half scale d, 16 bytes;          w = d * (q - 8)
//   q4_1             blocks of 32: half d, half minimum m, 16 bytes;  w = d * q + m
//
// In the last two, number i of a block is in the low half of byte i, number i + 16 in its high half.
// Source: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
#pragma once

#include <cstdint>
#include <string>

namespace headstart {

struct StoredType {
  const char* name;
  int64_t block_size;   // numbers in a block, 1 for plain types
  int64_t block_bytes;
  void (*read_blocks)(const uint8_t* blocks, int64_t num_blocks, float* out);
};

// Throws std::invalid_argument that lists the names.
const StoredType& stored_type(const std::string& name);

struct StoredRows {
  const StoredType* type;
  const uint8_t* data;
  int64_t num_rows;
  int64_t row_bytes;  // whole blocks

  int64_t row_size() const { return row_bytes / type->block_bytes * type->block_size; }
  // row_size() numbers.
  void read(int64_t row, float* out) const;
};

// Throws std::invalid_argument when a row does not hold whole blocks.
StoredRows stored_rows(const std::string& type, const uint8_t* data, int64_t num_rows, int64_t row_bytes);

}  // namespace headstart
