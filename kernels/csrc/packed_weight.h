// The weight of a linear layer, [n][k], laid out for the kernels: the same layout on every instruction set.
//
// Columns of the output go in groups of 16; a group is one run of memory, 64-byte aligned, and the last is padded with
// zeros. Inside a group, for each pair of k (an odd k gets a zero partner):
//   f32          for each k: 16 floats
//   bf16         for each pair: 16 x (even k, odd k)
//   q8_0         for each block of 32 k: 16 half scales d, then for each pair 16 x (even k, odd k) bytes; w = d * q
//   q4_1         for each block of 32 k: 16 half scales d, 16 half minima m, then for each 8 k 16 words of 32 bits,
//                in which k = 8 j + 2 s + odd is the nibble at bit 4 s + 16 odd; w = d * q + m
// Knows nothing of models. Its memory is advised to lie in huge pages: reading it is what decoding costs.
#pragma once

#include <cstdint>
#include <memory>

#include "stored_rows.h"

namespace headstart {

inline constexpr int64_t kGroupColumns = 16;
inline constexpr int64_t kQuantBlock = 32;  // k values that share a scale, as in GGUF

// Zeroed memory in huge pages, handed out in 64-byte aligned pieces that live on their own: a piece keeps its chunk
// alive. Small weights are thus neighbours in one huge page. Not for several threads at once.
class HugeArena {
 public:
  // Throws std::bad_alloc.
  std::shared_ptr<uint8_t> allocate(int64_t num_bytes);

 private:
  std::shared_ptr<uint8_t> chunk_;
  int64_t chunk_bytes_ = 0;
  int64_t used_bytes_ = 0;
};

struct PackedWeight {
  enum class Type { f32, bf16, q8_0, q4_1 };

  Type type = Type::f32;
  int64_t n = 0;
  int64_t k = 0;
  int64_t group_bytes = 0;
  std::shared_ptr<uint8_t> memory;

  int64_t num_groups() const { return (n + kGroupColumns - 1) / kGroupColumns; }
  int64_t num_bytes() const { return num_groups() * group_bytes; }
  int64_t block_bytes() const { return group_bytes / (k / kQuantBlock); }  // of a group; for blocks only
  const uint8_t* group(int64_t index) const { return memory.get() + index * group_bytes; }
  // Whether the x of a product with it is bf16; float otherwise.
  bool takes_bf16() const { return type == Type::bf16; }
  bool is_quantised() const { return type == Type::q8_0 || type == Type::q4_1; }
};

// Each takes its memory from `arena`.

// As f32 or bf16 (rounded to nearest even). Throws std::invalid_argument for another type or for no rows or columns.
PackedWeight pack_rows(HugeArena& arena, const StoredRows& rows, PackedWeight::Type type);

// Rows of q8_0, q4_0 or q4_1 in their blocks. A q4_0 becomes a q4_1 whose minimum is -8 d, which is exact.
// Throws std::invalid_argument for another stored type or for no rows or columns.
PackedWeight pack_blocks(HugeArena& arena, const StoredRows& rows);

}  // namespace headstart
