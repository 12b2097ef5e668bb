#include "packed_weight.h"

#include <sys/mman.h>

#include <new>
#include <stdexcept>
#include <string>

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

PackedWeight pack_floats(HugeArena& arena, const float* w, int64_t n, int64_t k) {
  PackedWeight weight = make_weight(arena, PackedWeight::Type::f32, n, k, k * kGroupColumns * 4);
  float* out = reinterpret_cast<float*>(weight.memory.get());
  for (int64_t row = 0; row < n; ++row) {
    float* column = out + row / kGroupColumns * k * kGroupColumns + row % kGroupColumns;
    for (int64_t i = 0; i < k; ++i) column[i * kGroupColumns] = w[row * k + i];
  }
  return weight;
}

template <typename Source, typename ToBf16>
PackedWeight pack_halves(HugeArena& arena, const Source* w, int64_t n, int64_t k, ToBf16 to_bf16) {
  const int64_t pairs = (k + 1) / 2;
  PackedWeight weight = make_weight(arena, PackedWeight::Type::bf16, n, k, pairs * kGroupColumns * 4);
  uint16_t* out = reinterpret_cast<uint16_t*>(weight.memory.get());
  for (int64_t row = 0; row < n; ++row) {
    uint16_t* column = out + row / kGroupColumns * pairs * kGroupColumns * 2 + row % kGroupColumns * 2;
    for (int64_t i = 0; i < k; ++i) column[i / 2 * kGroupColumns * 2 + i % 2] = to_bf16(w[row * k + i]);
  }
  return weight;
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

PackedWeight pack_f32(HugeArena& arena, const float* w, int64_t n, int64_t k, PackedWeight::Type type) {
  check_size(n, k);
  if (type == PackedWeight::Type::f32) return pack_floats(arena, w, n, k);
  if (type == PackedWeight::Type::bf16) return pack_halves(arena, w, n, k, bf16_of_float);
  throw std::invalid_argument("type: floats are packed as f32 or bf16");
}

PackedWeight pack_bf16(HugeArena& arena, const uint16_t* w, int64_t n, int64_t k) {
  check_size(n, k);
  return pack_halves(arena, w, n, k, [](uint16_t value) { return value; });
}

}  // namespace headstart
