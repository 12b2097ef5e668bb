// Which queries of a step meet which tiles of keys, in pieces that threads share out. Made once a step, used by every
// layer. Rows whose page tables begin with the same pages read those pages once.
//
// The result of a (token, head) does not depend on the plan: its tiles of kTileKeys keys start at multiples of
// kTileKeys of its request, are folded from first to last within a chunk of kChunkTiles tiles, and chunks are folded
// from first to last (online softmax: Milakov and Gimelshein, 2018). A plan only says who does which part of that.
#pragma once

#include <cstdint>
#include <vector>

namespace headstart {

inline constexpr int64_t kTileKeys = 64;
inline constexpr int64_t kChunkTiles = 8;
inline constexpr int64_t kMaxHeadsAtOnce = 8;  // K/V heads of one unit
inline constexpr int64_t kChunkKeys = kTileKeys * kChunkTiles;

// The rows of a step, laid out as in headstart_kernels/metadata.py. Borrowed; must outlive the plan.
struct PageTable {
  const int32_t* qo_indptr;   // [num_rows + 1]
  const int32_t* kv_indptr;   // [num_rows + 1]
  const int32_t* kv_indices;  // [kv_indptr[num_rows]]
  const int32_t* seq_lens;    // [num_rows]
  int64_t num_rows;
  int64_t page_size;
};

// Tokens that follow each other in one row. What a token has of chunk c is kept in state slot
// state + i * num_chunks + c, i being the token's place in the span; a whole unit keeps nothing.
struct QuerySpan {
  int64_t token;
  int64_t count;
  int64_t position;  // of the first token
  int64_t state;
  int64_t num_chunks;
};

// Tiles tile_begin .. tile_end - 1 of one page table and some K/V heads, for all tokens of some spans.
struct AttentionUnit {
  const int32_t* pages;
  int64_t num_keys;  // keys that the pages hold: later ones are never read
  int64_t tile_begin;
  int64_t tile_end;
  int64_t head_begin;
  int64_t head_end;
  int64_t span_begin;
  int64_t span_end;
  int64_t num_tokens;
  bool is_whole;  // has all tiles of its tokens, so writes the output; others leave states for merge_states
};

struct PlanShape {
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t num_threads;
  bool shares_prefixes;  // off: every row reads its own pages, for tests and measurements
};

struct AttentionPlan {
  std::vector<QuerySpan> spans;
  std::vector<AttentionUnit> units;   // stage after stage, in each the costliest first
  std::vector<int64_t> stage_ends;    // units of a stage may only need what earlier stages left
  std::vector<int64_t> merged_spans;  // spans whose tokens' output is folded from states
  int64_t num_states = 0;
  int64_t max_unit_tokens = 0;
  int64_t max_unit_heads = 1;
};

// Throws std::invalid_argument that names the array that makes no sense. num_indices is the length of kv_indices;
// that pages are in the storage is not checked here.
void check_page_table(const PageTable& table, int64_t num_indices);

// The table must be valid. Throws std::invalid_argument for a shape that makes no sense.
AttentionPlan plan_attention(const PageTable& table, const PlanShape& shape);

// Tiles of keys that the plan reads: what sharing saves.
int64_t count_tile_reads(const AttentionPlan& plan);

}  // namespace headstart
