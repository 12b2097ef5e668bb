// One unit of an attention plan, and the folding of states that units left.
//
// A query row is one token and one of the heads that share the K/V head. Its state is, as state_floats says: the sum of
// weights times values, kStateLanes partial sums of the weights, and the largest score so far ("peak"), all in base 2.
#pragma once

#include "attention_pack_impl.h"

namespace headstart {
namespace HEADSTART_ISA_NAMESPACE {

static constexpr float kInfinity = __builtin_inff();
static constexpr float kLog2E = 1.44269504088896341f;

struct QueryPlace {
  int64_t token;
  int64_t position;
  int64_t state;  // of the token's first chunk; unused in a whole unit
};
static_assert(sizeof(QueryPlace) <= kPlaceFloats * sizeof(float), "thread_layout has too little room");

// What the steps below share: one unit, one of its K/V heads, one thread's memory.
struct Work {
  const AttentionCall* call;
  const AttentionUnit* unit;
  int64_t kv_head, group, num_queries, block_size, width, depth, state_size;
  float *queries, *keys, *values, *scores, *weights, *states, *totals, *kept;
  QueryPlace* places;

  float* state_of(float* all, int64_t query) const { return all + query * state_size; }
  float* sums_of(float* state) const { return state + width; }
  float* peak_of(float* state) const { return state + width + kStateLanes; }
  int64_t head_of(int64_t query) const { return kv_head * group + query % group; }
  float* kept_state(int64_t query, int64_t chunk) const {
    return kept + ((places[query].state + chunk) * call->num_heads + head_of(query)) * state_size;
  }
};

static Work set_up(const AttentionCall& call, const AttentionUnit& unit, int64_t kv_head, AttentionBuffers buffers) {
  const int64_t index = kv_head - unit.head_begin;
  Work work{};
  const int64_t head_dim = call.kv.head_dim;
  work.call = &call;
  work.unit = &unit;
  work.kv_head = kv_head;
  work.group = call.num_heads / call.kv.num_kv_heads;
  work.num_queries = unit.num_tokens * work.group;
  // Blocks of nearly the same size: a block of one query keeps too few sums in flight.
  const int64_t num_blocks = (work.num_queries + kBlockQueries - 1) / kBlockQueries;
  work.block_size = (work.num_queries + num_blocks - 1) / num_blocks;
  work.width = padded_head_dim(head_dim);
  work.state_size = state_floats(head_dim);
  const ThreadLayout layout = thread_layout(work.num_queries, unit.head_end - unit.head_begin, head_dim);
  float* own = buffers.thread + index * layout.head_size;
  work.queries = own + layout.queries;
  work.keys = buffers.thread + layout.keys;
  work.values = buffers.thread + layout.values;
  work.scores = buffers.thread + layout.scores;
  work.weights = buffers.thread + layout.weights;
  work.states = own + layout.states;
  work.totals = own + layout.totals;
  work.places = reinterpret_cast<QueryPlace*>(buffers.thread + layout.places);
  work.kept = buffers.states;
  return work;
}

static void find_places(const Work& work, const QuerySpan* spans) {
  QueryPlace* place = work.places;
  for (int64_t s = work.unit->span_begin; s < work.unit->span_end; ++s) {
    for (int64_t i = 0; i < spans[s].count; ++i) {
      for (int64_t g = 0; g < work.group; ++g, ++place) {
        *place = {spans[s].token + i, spans[s].position + i, spans[s].state + i * spans[s].num_chunks};
      }
    }
  }
}

// Queries times scale and log2(e), block by block as `score_rows` reads them.
template <class Math>
static void pack_queries(const Work& work) {
  const int64_t head_dim = work.call->kv.head_dim;
  const float scale = work.call->scale * kLog2E;
  for (int64_t query = 0; query < work.num_queries; ++query) {
    const float* from = work.call->q + work.places[query].token * work.call->ldq + work.head_of(query) * head_dim;
    float* to = work.queries + query / work.block_size * work.depth * kBlockQueries + query % work.block_size;
    Math::pack_query(to, from, scale, head_dim);
  }
}

// Hides keys after the query: `visible` of the tile's keys come first and stay. Selected, never multiplied.
static void hide_keys(float* scores, int64_t visible) {
  alignas(64) static const struct Bounds {
    float values[2 * kTileKeys];
    constexpr Bounds() : values() {
      for (int64_t i = 0; i < 2 * kTileKeys; ++i) values[i] = i < kTileKeys ? kInfinity : -kInfinity;
    }
  } bounds;
  const float* bound = bounds.values + kTileKeys - visible;
  for (int64_t key = 0; key < kTileKeys; key += kLanes) {
    store(scores + key, min(load(scores + key), load(bound + key)));
  }
}

static inline float largest_score(const float* scores) {
  vf largest = load(scores);
  for (int64_t key = kLanes; key < kTileKeys; key += kLanes) largest = max(largest, load(scores + key));
  return largest_lane(largest);
}

// Raises the rows' peaks by the tile's scores. Gives what the weights are relative to, and what the states so far must
// be multiplied with.
template <int kRows>
static void raise_peaks(const Work& work, int64_t first, int64_t tile, float* bases, float* rescale) {
  constexpr int64_t kPadded = 16;
  static_assert(kRows <= kPadded && kPadded % kLanes == 0, "");
  float falls[kPadded] = {};
  for (int64_t row = 0; row < kRows; ++row) {
    float* scores = work.scores + row * kTileKeys;
    const int64_t visible = work.places[first + row].position - tile * kTileKeys + 1;
    if (visible < kTileKeys) hide_keys(scores, greater(0, visible));
    float* peak = work.peak_of(work.state_of(work.states, first + row));
    const float before = *peak, here = largest_score(scores);
    *peak = here > before ? here : before;
    // A row that sees no key yet has no peak: any finite one makes all its weights zero.
    bases[row] = *peak == -kInfinity ? 0.0f : *peak;
    falls[row] = before - bases[row];
  }
  for (int64_t row = 0; row < kRows; row += kLanes) store(rescale + row, exp2_of_negative(load(falls + row)));
}

static inline int64_t latest_position(const Work& work, int64_t first, int64_t num_rows) {
  int64_t latest = work.places[first].position;
  for (int64_t row = 1; row < num_rows; ++row) latest = greater(latest, work.places[first + row].position);
  return latest;
}

// `visible` keys of the tile come before all that is hidden from every row.
template <class Math, int kRows>
static void attend_rows(const Work& work, int64_t first, int64_t tile, int64_t visible, RowsAhead& ahead) {
  const float* queries = work.queries + first / work.block_size * work.depth * kBlockQueries;
  score_rows<Math, kRows>(queries, work.keys, work.depth, work.scores);
  float bases[kRows], rescale[16];
  ahead.fetch(2);
  raise_peaks<kRows>(work, first, tile, bases, rescale);
  for (int64_t row = 0; row < kRows; ++row) {
    ahead.fetch(1);
    Math::weigh(work.scores + row * kTileKeys, bases[row], work.weights + row * kTileKeys,
                work.sums_of(work.state_of(work.states, first + row)), rescale[row]);
  }
  const int64_t depth = (visible + Math::kPerElement - 1) / Math::kPerElement;
  add_values<Math, kRows>(work.weights, work.values, work.width, depth, work.state_of(work.states, first),
                          work.state_size, rescale);
}

template <class Math>
static void attend_tile(const Work& work, int64_t tile, RowsAhead& ahead) {
  for (int64_t first = 0; first < work.num_queries; first += work.block_size) {
    const int64_t num_rows = lesser(work.block_size, work.num_queries - first);
    const int64_t visible = lesser(kTileKeys, latest_position(work, first, num_rows) - tile * kTileKeys + 1);
    if (visible <= 0) continue;
    switch (num_rows) {
      case 1: attend_rows<Math, 1>(work, first, tile, visible, ahead); break;
      case 2: attend_rows<Math, 2>(work, first, tile, visible, ahead); break;
      case 3: attend_rows<Math, 3>(work, first, tile, visible, ahead); break;
      case 4: attend_rows<Math, 4>(work, first, tile, visible, ahead); break;
      case 5: attend_rows<Math, 5>(work, first, tile, visible, ahead); break;
      default: attend_rows<Math, 6>(work, first, tile, visible, ahead); break;
    }
  }
}

static void clear_state(const Work& work, float* state) {
  for (int64_t i = 0; i < work.state_size; i += kLanes) store(state + i, zero());
  *work.peak_of(state) = -kInfinity;
}

static void copy_state(const Work& work, float* to, const float* from) {
  for (int64_t i = 0; i < work.state_size; i += kLanes) store(to + i, load(from + i));
}

// total = total and then state, in base 2 with the larger of the two peaks.
static void fold_state(const Work& work, float* total, const float* state) {
  const float mine = *(total + work.width + kStateLanes), other = *(state + work.width + kStateLanes);
  const float peak = other > mine ? other : mine;
  const vf keep = exp2_of_negative(set1(mine - peak)), take = exp2_of_negative(set1(other - peak));
  for (int64_t i = 0; i < work.width + kStateLanes; i += kLanes) {
    store(total + i, fma(load(state + i), take, mul(load(total + i), keep)));
  }
  *work.peak_of(total) = peak;
}

// The weighted mean of the values. Adding zero makes -0 and 0 one: which of them it was may depend on hidden keys.
static void write_output(const Work& work, int64_t query, const float* total) {
  const int64_t head_dim = work.call->kv.head_dim;
  const float* sums = total + work.width;
  vf sum = load(sums);
  for (int64_t i = kLanes; i < kStateLanes; i += kLanes) sum = add(sum, load(sums + i));
  const vf inverse = set1(1.0f / reduce_add(sum));
  const int64_t place = work.places[query].token * work.call->ldo + work.head_of(query) * head_dim;
  for (int64_t d = 0; d < head_dim; d += kLanes) {
    const int64_t count = lesser(kLanes, head_dim - d);
    const vf value = add(mul(load(total + d), inverse), zero());
    if (work.call->is_out_bf16) {
      store_bf16_partial(static_cast<uint16_t*>(work.call->out) + place + d, value, count);
    } else {
      store_partial(static_cast<float*>(work.call->out) + place + d, value, count);
    }
  }
}

// After the last of the unit's tiles in a chunk: a whole unit folds, others leave the state for who comes next.
static void finish_chunk(const Work& work, int64_t chunk) {
  for (int64_t query = 0; query < work.num_queries; ++query) {
    float* state = work.state_of(work.states, query);
    float* total = work.state_of(work.totals, query);
    if (work.places[query].position < chunk * kChunkKeys) continue;
    if (!work.unit->is_whole) {
      copy_state(work, work.kept_state(query, chunk), state);
    } else if (chunk == 0) {
      copy_state(work, total, state);
    } else {
      fold_state(work, total, state);
    }
  }
}

static void begin_chunk(const Work& work, int64_t chunk, bool is_begun) {
  for (int64_t query = 0; query < work.num_queries; ++query) {
    float* state = work.state_of(work.states, query);
    if (is_begun && work.places[query].position >= chunk * kChunkKeys) {
      copy_state(work, state, work.kept_state(query, chunk));
    } else {
      clear_state(work, state);
    }
  }
}

// One tile of one head: laid out as panels, met by the queries, and its chunk's state begun or left when it is time.
template <class Kv>
static void attend_head(const Work& work, const TileRows& rows, int64_t tile, RowsAhead ahead) {
  const AttentionUnit& unit = *work.unit;
  const int64_t chunk = tile / kChunkTiles, head_dim = work.call->kv.head_dim;
  const bool is_chunk_begin = tile % kChunkTiles == 0;
  if (is_chunk_begin || tile == unit.tile_begin) begin_chunk(work, chunk, !is_chunk_begin);
  pack_tile<Kv>(rows, (work.kv_head - unit.head_begin) * head_dim * Kv::kBytes,
                {head_dim, work.width, work.keys, work.values}, ahead);
  attend_tile<typename Kv::Math>(work, tile, ahead);
  ahead.fetch(kTileKeys);
  if ((tile + 1) % kChunkTiles == 0 || tile + 1 == unit.tile_end) finish_chunk(work, chunk);
}

// `next`: what this thread will probably do after it, or null. Its first tile is fetched beside the last one here.
template <class Kv>
static void attend_unit_as(const AttentionCall& call, const AttentionUnit& unit, const QuerySpan* spans,
                           const AttentionUnit* next, AttentionBuffers buffers) {
  const KvLayer& kv = call.kv;
  const int64_t num_heads = unit.head_end - unit.head_begin, row_bytes = kv.head_dim * Kv::kBytes;
  Work works[kMaxHeadsAtOnce];
  for (int64_t head = 0; head < num_heads; ++head) {
    works[head] = set_up(call, unit, unit.head_begin + head, buffers);
    works[head].depth = kv.head_dim / Kv::Math::kPerElement;
    if (head == 0) find_places(works[0], spans);
    pack_queries<typename Kv::Math>(works[head]);
  }
  TileRows rows[2];
  find_rows(kv, unit, unit.tile_begin, &rows[0]);
  for (int64_t tile = unit.tile_begin; tile < unit.tile_end; ++tile) {
    const int64_t turn = (tile - unit.tile_begin) % 2;
    const bool is_last = tile + 1 == unit.tile_end, has_ahead = !is_last || next != nullptr;
    const AttentionUnit& after = is_last && has_ahead ? *next : unit;
    if (has_ahead) find_rows(kv, after, is_last ? after.tile_begin : tile + 1, &rows[1 - turn]);
    const int64_t ahead_bytes = (after.head_end - after.head_begin) * row_bytes;
    for (int64_t head = 0; head < num_heads; ++head) {
      RowsAhead ahead = {&rows[1 - turn], ahead_bytes, 0, 0};
      if (has_ahead) {
        const int64_t count = rows[1 - turn].count;
        ahead.row = head * count / num_heads;
        ahead.end = (head + 1) * count / num_heads;
      }
      attend_head<Kv>(works[head], rows[turn], tile, ahead);
    }
  }
  for (int64_t head = 0; unit.is_whole && head < num_heads; ++head) {
    for (int64_t query = 0; query < works[head].num_queries; ++query) {
      write_output(works[head], query, works[head].state_of(works[head].totals, query));
    }
  }
}

static void attend_unit(const AttentionCall& call, const AttentionUnit& unit, const QuerySpan* spans,
                        const AttentionUnit* next, AttentionBuffers buffers) {
  if (!call.kv.is_bf16) return attend_unit_as<FloatKv>(call, unit, spans, next, buffers);
#if defined(__AVX512BF16__)
  attend_unit_as<PairedKv>(call, unit, spans, next, buffers);
#else
  attend_unit_as<WidenedKv>(call, unit, spans, next, buffers);
#endif
}

// The output of a span's tokens, folded from the states of their chunks, first to last.
static void merge_states(const AttentionCall& call, const QuerySpan& span, int64_t kv_head, AttentionBuffers buffers) {
  AttentionUnit unit{};
  unit.span_end = 1;
  unit.head_begin = kv_head;
  unit.head_end = kv_head + 1;
  unit.num_tokens = span.count;
  const Work work = set_up(call, unit, kv_head, buffers);
  find_places(work, &span);
  for (int64_t query = 0; query < work.num_queries; ++query) {
    float* total = work.state_of(work.totals, query);
    copy_state(work, total, work.kept_state(query, 0));
    for (int64_t chunk = 1; chunk * kChunkKeys <= work.places[query].position; ++chunk) {
      fold_state(work, total, work.kept_state(query, chunk));
    }
    write_output(work, query, total);
  }
}

}  // namespace HEADSTART_ISA_NAMESPACE
}  // namespace headstart
