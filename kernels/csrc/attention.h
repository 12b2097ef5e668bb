// Causal attention over paged K/V for every kind of row (first chunk, later chunk, prefix hit, decode, draft check).
// Knows nothing of requests or models. Owns only scratch.
#pragma once

#include <cstdint>

#include "attention_plan.h"
#include "mapped_memory.h"
#include "thread_pool.h"

namespace headstart {

struct KernelTable;

inline constexpr int64_t kMaxHeadDim = 256;

inline constexpr int64_t kPanelSlots = 16;

// Storage of one layer, laid out as the kernels multiply it, the same on every instruction set. Borrowed.
//
// Slot page * page_size + offset is column slot % 16 of panel slot / 16, whatever the page size. A panel is one run of
// memory, head after head, of each 16 x head_dim numbers of K, then as many of V:
//   bf16   K: for each pair of d, 16 x (even d, odd d). V: for each pair of slots, head_dim x (even slot, odd slot)
//   f32    K: for each d, 16 slots. V: for each slot, head_dim numbers
// So K of a head is a group of a packed weight (packed_weight.h), and V is one with more columns. Pages of whole panels
// are read as they lie; others are put together slot by slot first.
struct KvLayer {
  void* data;
  bool is_bf16;  // else float32
  int64_t page_size;
  int64_t num_kv_heads;
  int64_t head_dim;  // a multiple of 8, at most kMaxHeadDim
};

struct AttentionCall {
  const float* q;  // [tokens][ldq]: num_heads * head_dim of each, already rotated
  int64_t ldq;
  KvLayer kv;
  int64_t num_heads;  // a multiple of num_kv_heads: neighbours share a K/V head
  float scale;
  void* out;  // [tokens][ldo], like q
  int64_t ldo;
  bool is_out_bf16;  // else float32
};

// Memory of one thread, and the states that units leave to each other.
struct AttentionBuffers {
  float* thread;
  float* states;
};

class AttentionScratch {
 public:
  // Room for `plan`; grows, never shrinks.
  void reserve(const AttentionPlan& plan, const AttentionCall& call, int num_threads);
  AttentionBuffers of_thread(int thread) const;

 private:
  MappedMemory threads_;
  MappedMemory states_;
  int64_t thread_floats_ = 0;
};

// out of every query token of the plan. K/V of this step must be in place. Throws std::invalid_argument that names
// the number that makes no sense.
void attend(ThreadPool& pool, const KernelTable& kernels, const AttentionPlan& plan, AttentionScratch& scratch,
            const AttentionCall& call);

// Sizes that kernels and scratch agree on.
inline constexpr int64_t kBlockQueries = 6;  // query rows of one register tile
inline constexpr int64_t kStateLanes = 16;   // partial sums of the softmax's denominator
inline int64_t padded_head_dim(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }
// A state: the weighted sum of values, the partial sums of weights, the largest score.
inline int64_t state_floats(int64_t head_dim) { return padded_head_dim(head_dim) + 2 * kStateLanes; }

// Where the arrays of one thread lie, counted in floats, for num_queries query rows of each of num_heads K/V heads.
struct ThreadLayout {
  int64_t places;   // [num_queries]: QueryPlace of each query row, 8 floats each
  int64_t scores;   // [kBlockQueries][kTileKeys]
  int64_t weights;  // [kBlockQueries][kTileKeys]
  int64_t tile;     // a tile's panels of one head, where pages are no whole panels
  // Of each head, head_size floats apart:
  int64_t queries;  // [num_queries][depth]: scaled
  int64_t peaks;    // [num_queries]: the largest score of each state; 16 are readable from each
  int64_t states;   // [num_queries][state_floats]: of the chunk being folded
  int64_t totals;   // [num_queries][state_floats]: of the chunks before it
  int64_t head_size;
  int64_t size;
};
inline constexpr int64_t kPlaceFloats = 8;

inline ThreadLayout thread_layout(int64_t num_queries, int64_t num_heads, int64_t head_dim) {
  const int64_t width = padded_head_dim(head_dim);
  ThreadLayout layout{};
  layout.places = 0;
  layout.scores = layout.places + (num_queries * kPlaceFloats + 15) / 16 * 16;
  layout.weights = layout.scores + kBlockQueries * kTileKeys;
  layout.tile = layout.weights + kBlockQueries * kTileKeys;
  layout.queries = layout.tile + 2 * kTileKeys * width;
  layout.peaks = layout.queries + num_queries * width;
  layout.states = layout.peaks + (num_queries + 31) / 16 * 16;
  layout.totals = layout.states + num_queries * state_floats(head_dim);
  layout.head_size = layout.totals + num_queries * state_floats(head_dim) - layout.queries;
  layout.size = layout.queries + num_heads * layout.head_size;
  return layout;
}

}  // namespace headstart
