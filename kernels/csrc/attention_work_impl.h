// What one unit works on, and the states of its query rows.
//
// A query row is one token and one of the heads that share the K/V head. Its state is, as state_floats says: the sum of
// weights times values, kStateLanes partial sums of the weights, and the largest score so far ("peak"), all in base 2.
// While a chunk is worked on its peaks lie side by side in `peaks`, and those of `states` mean nothing.
#pragma once

#include "attention_math_impl.h"

namespace headstart {
namespace HEADSTART_ISA_NAMESPACE {

static constexpr float kInfinity = __builtin_inff();
static constexpr float kLargestFloat = 3.402823466e+38f;
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
  float *queries, *scores, *weights, *tile, *peaks, *states, *totals, *kept;
  QueryPlace* places;

  float* state_of(float* all, int64_t query) const { return all + query * state_size; }
  float* sums_of(float* state) const { return state + width; }
  template <typename T>
  T* peak_of(T* state) const { return state + width + kStateLanes; }
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
  work.scores = buffers.thread + layout.scores;
  work.weights = buffers.thread + layout.weights;
  work.tile = buffers.thread + layout.tile;
  work.peaks = own + layout.peaks;
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

// Queries times scale and log2(e), `depth` words each.
template <class Math>
static void scale_queries(const Work& work) {
  const int64_t head_dim = work.call->kv.head_dim;
  const float scale = work.call->scale * kLog2E;
  for (int64_t query = 0; query < work.num_queries; ++query) {
    const float* from = work.call->q + work.places[query].token * work.call->ldq + work.head_of(query) * head_dim;
    Math::scale_query(work.queries + query * work.depth, from, scale, head_dim);
  }
}

static void clear_state(const Work& work, int64_t query) {
  float* state = work.state_of(work.states, query);
  for (int64_t i = 0; i < work.state_size; i += kLanes) store(state + i, zero());
  work.peaks[query] = -kInfinity;
}

static void copy_state(const Work& work, float* to, const float* from) {
  for (int64_t i = 0; i < work.state_size; i += kLanes) store(to + i, load(from + i));
}

// total = total and then state, in base 2 with the larger of the two peaks.
static void fold_state(const Work& work, float* total, const float* state) {
  const float mine = *work.peak_of(total), other = *work.peak_of(state);
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
    store_as(work.call->out, work.call->is_out_bf16, place + d, value, count);
  }
}

// After the last of the unit's tiles in a chunk: a whole unit folds, others leave the state for who comes next.
static void finish_chunk(const Work& work, int64_t chunk) {
  for (int64_t query = 0; query < work.num_queries; ++query) {
    float* state = work.state_of(work.states, query);
    float* total = work.state_of(work.totals, query);
    if (work.places[query].position < chunk * kChunkKeys) continue;
    *work.peak_of(state) = work.peaks[query];
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
      work.peaks[query] = *work.peak_of(state);
    } else {
      clear_state(work, query);
    }
  }
}

}  // namespace HEADSTART_ISA_NAMESPACE
}  // namespace headstart
