#include "packed_weight.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "bf16.h"

namespace headstart {

namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kAlignment = 64;
constexpr int64_t kChunkBytes = int64_t{64} << 20;  // the unused end of a chunk is never touched, so it costs nothing

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Fresh zero pages that start at a huge page.
void* mmap_aligned(int64_t bytes) {
  const int64_t mapped = bytes + kHugePage;
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  uint8_t* start = static_cast<uint8_t*>(memory);
  const int64_t before = round_up(reinterpret_cast<int64_t>(start), kHugePage) - reinterpret_cast<int64_t>(start);
  if (before > 0) munmap(start, before);
  if (before < kHugePage) munmap(start + before + bytes, kHugePage - before);
  madvise(start + before, bytes, MADV_HUGEPAGE);
  return start + before;
}

PackedWeight make_weight(HugeArena& arena, PackedWeight::Type type, int64_t n, int64_t k, int64_t group_bytes) {
  PackedWeight weight;
  weight.type = type;
  weight.n = n;
  weight.k = k;
  weight.group_bytes = group_bytes;
  weight.memory = arena.allocate(weight.num_bytes());
  return weight;
}

void check_size(int64_t n, int64_t k) {
  if (n < 1) throw std::invalid_argument("n: must be at least 1, is " + std::to_string(n));
  if (k < 1) throw std::invalid_argument("k: must be at least 1, is " + std::to_string(k));
}

// Sixteen rows at a time, so that a group is written from its start to its end: `encode` makes one row's words, which
// the group has side by side. Rows beyond the last stay zero.
template <typename Encode>
void pack_groups(const StoredRows& rows, int64_t words, uint32_t* out, Encode encode) {
  std::vector<float> values(rows.row_size() + 1);  // an odd row has a zero partner at its end
  std::vector<uint32_t> encoded(kGroupColumns * words);
  for (int64_t first = 0; first < rows.num_rows; first += kGroupColumns, out += kGroupColumns * words) {
    const int64_t count = std::min(kGroupColumns, rows.num_rows - first);
    if (count < kGroupColumns) std::fill(encoded.begin(), encoded.end(), 0);
    for (int64_t column = 0; column < count; ++column) {
      rows.read(first + column, values.data());
      encode(values.data(), encoded.data() + column * words);
    }
    for (int64_t word = 0; word < words; ++word) {
      for (int64_t column = 0; column < kGroupColumns; ++column) {
        out[word * kGroupColumns + column] = encoded[column * words + word];
      }
    }
  }
}

// One column of a block, from GGUF's order into the group's.
void place_q8_0(const uint8_t* source, uint8_t* target, int64_t column) {
  std::memcpy(target + column * 2, source, 2);
  uint8_t* quants = target + kGroupColumns * 2 + column * 2;
  for (int64_t i = 0; i < kQuantBlock; ++i) quants[i / 2 * kGroupColumns * 2 + i % 2] = source[2 + i];
}

// GGUF has k = i in the low nibble of byte i and k = i + 16 in the high one.
void place_nibbles(const uint8_t* source, uint8_t* target, int64_t column) {
  uint8_t* quants = target + kGroupColumns * 4 + column * 4;
  for (int64_t i = 0; i < kQuantBlock; ++i) {
    const int64_t nibble = i < 16 ? source[i] & 15 : source[i - 16] >> 4;
    const int64_t bit = i % 8 / 2 * 4 + i % 2 * 16;
    quants[i / 8 * kGroupColumns * 4 + bit / 8] |= static_cast<uint8_t>(nibble << bit % 8);
  }
}

void place_q4_1(const uint8_t* source, uint8_t* target, int64_t column) {
  std::memcpy(target + column * 2, source, 2);
  std::memcpy(target + kGroupColumns * 2 + column * 2, source + 2, 2);
  place_nibbles(source + 4, target, column);
}

void place_q4_0(const uint8_t* source, uint8_t* target, int64_t column) {
  uint16_t scale;
  std::memcpy(&scale, source, sizeof(scale));
  const uint16_t minimum = half_times_minus_8(scale);
  std::memcpy(target + column * 2, &scale, sizeof(scale));
  std::memcpy(target + kGroupColumns * 2 + column * 2, &minimum, sizeof(minimum));
  place_nibbles(source + 2, target, column);
}

}  // namespace

std::shared_ptr<uint8_t> HugeArena::allocate(int64_t num_bytes) {
  const int64_t size = round_up(num_bytes, kAlignment);
  if (used_bytes_ + size > chunk_bytes_) {
    const int64_t bytes = round_up(size > kChunkBytes ? size : kChunkBytes, kHugePage);
    void* memory = mmap_aligned(bytes);
    chunk_ = std::shared_ptr<uint8_t>(static_cast<uint8_t*>(memory), [bytes](uint8_t* p) { munmap(p, bytes); });
    chunk_bytes_ = bytes;
    used_bytes_ = 0;
  }
  std::shared_ptr<uint8_t> piece(chunk_, chunk_.get() + used_bytes_);
  used_bytes_ += size;
  return piece;
}

PackedWeight pack_rows(HugeArena& arena, const StoredRows& rows, PackedWeight::Type type) {
  const int64_t n = rows.num_rows, k = rows.row_size();
  check_size(n, k);
  if (type != PackedWeight::Type::f32 && type != PackedWeight::Type::bf16) {
    throw std::invalid_argument("type: numbers are packed as f32 or bf16");
  }
  const bool is_bf16 = type == PackedWeight::Type::bf16;
  const int64_t words = is_bf16 ? (k + 1) / 2 : k;
  PackedWeight weight = make_weight(arena, type, n, k, words * kGroupColumns * 4);
  uint32_t* out = reinterpret_cast<uint32_t*>(weight.memory.get());
  if (is_bf16) {
    pack_groups(rows, words, out, [words](const float* values, uint32_t* to) {
      for (int64_t i = 0; i < words; ++i) {
        to[i] = bf16_of_float(values[2 * i]) | static_cast<uint32_t>(bf16_of_float(values[2 * i + 1])) << 16;
      }
    });
  } else {
    pack_groups(rows, words, out, [words](const float* values, uint32_t* to) {
      std::memcpy(to, values, words * sizeof(float));
    });
  }
  return weight;
}

PackedWeight pack_blocks(HugeArena& arena, const StoredRows& rows) {
  const std::string stored = rows.type->name;
  if (stored != "q8_0" && stored != "q4_0" && stored != "q4_1") {
    throw std::invalid_argument("type: blocks are packed from q8_0, q4_0 or q4_1, not from " + stored);
  }
  const int64_t n = rows.num_rows, k = rows.row_size();
  check_size(n, k);
  const auto type = stored == "q8_0" ? PackedWeight::Type::q8_0 : PackedWeight::Type::q4_1;
  const auto place = stored == "q8_0" ? place_q8_0 : stored == "q4_0" ? place_q4_0 : place_q4_1;
  const int64_t num_blocks = k / kQuantBlock;
  const int64_t block_bytes = (type == PackedWeight::Type::q8_0 ? 34 : 20) * kGroupColumns;
  PackedWeight weight = make_weight(arena, type, n, k, num_blocks * block_bytes);
  for (int64_t row = 0; row < n; ++row) {
    uint8_t* group = weight.memory.get() + row / kGroupColumns * weight.group_bytes;
    const uint8_t* source = rows.data + row * rows.row_bytes;
    for (int64_t b = 0; b < num_blocks; ++b, source += rows.type->block_bytes) {
      place(source, group + b * block_bytes, row % kGroupColumns);
    }
  }
  return weight;
}

}  // namespace headstart
