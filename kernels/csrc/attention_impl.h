// One unit of an attention plan, and the folding of states that units left.
#pragma once

#include "attention_work_impl.h"

namespace headstart {
namespace HEADSTART_ISA_NAMESPACE {

// Hides keys after the query: `visible` of num_keys keys come first and stay. Selected, never multiplied.
static void hide_keys(float* scores, int64_t num_keys, int64_t visible) {
  alignas(64) static const struct Bounds {
    float values[2 * kTileKeys];
    constexpr Bounds() : values() {
      for (int64_t i = 0; i < 2 * kTileKeys; ++i) values[i] = i < kTileKeys ? kInfinity : -kInfinity;
    }
  } bounds;
  const float* bound = bounds.values + kTileKeys - visible;
  for (int64_t key = 0; key < num_keys; key += kLanes) {
    store(scores + key, min(load(scores + key), load(bound + key)));
  }
}

// Hides what comes after each row's own position; largest[row] is found anew.
template <int kRows>
static inline __attribute__((always_inline)) void hide_later_keys(const Work& work, int64_t first, int64_t tile,
                                                                  int64_t num_keys, vf (&largest)[kRows]) {
#pragma GCC unroll 6
  for (int row = 0; row < kRows; ++row) {
    float* scores = work.scores + row * kTileKeys;
    const int64_t visible = work.places[first + row].position - tile * kTileKeys + 1;
    if (visible >= num_keys) continue;
    hide_keys(scores, num_keys, greater(0, visible));
    largest[row] = load(scores);
    for (int64_t key = kLanes; key < num_keys; key += kLanes) largest[row] = max(largest[row], load(scores + key));
  }
}

// Raises the peaks of kRows query rows from `first` on by the largest scores of a tile. Gives what its weights are
// relative to, and what the states so far must be multiplied with, as arrays of 16.
template <int kRows>
static inline __attribute__((always_inline)) void raise_peaks(const Work& work, int64_t first,
                                                              const vf (&largest)[kRows], float* bases,
                                                              float* rescale) {
  alignas(64) float of_row[16] = {};
  find_largest_lanes(largest, of_row);
  for (int64_t row = 0; row < kRows; row += kLanes) {
    float* peaks = work.peaks + first + row;
    const vf before = load(peaks), peak = max(before, load(of_row + row));
    store_partial(peaks, peak, lesser(kLanes, kRows - row));
    // A row that sees no key yet has no peak: any finite one makes all its weights zero.
    const vf base = max(set1(-kLargestFloat), peak);
    store(bases + row, base);
    store(rescale + row, exp2_of_negative(sub(before, base)));
  }
}

static inline int64_t latest_position(const Work& work, int64_t first, int64_t num_rows) {
  int64_t latest = work.places[first].position;
  for (int64_t row = 1; row < num_rows; ++row) latest = greater(latest, work.places[first + row].position);
  return latest;
}

static inline int64_t earliest_position(const Work& work, int64_t first, int64_t num_rows) {
  int64_t earliest = work.places[first].position;
  for (int64_t row = 1; row < num_rows; ++row) earliest = lesser(earliest, work.places[first + row].position);
  return earliest;
}

// `visible` keys of the tile come before all that is hidden from every row; up to the last of a half tile is scored.
template <class Math, int kRows>
static void attend_rows(const Work& work, int64_t first, int64_t tile, int64_t visible, const float* const* panels,
                        PanelsAhead& ahead) {
  const float* queries = work.queries + first * work.depth;
  const int64_t num_words = work.call->kv.head_dim / Math::kWordNumbers;
  const int64_t num_keys = visible <= kHalfTile ? kHalfTile : kTileKeys;
  vf largest[kRows];
  if (num_keys < kMostColumns) {
    score_rows<Math, kRows, kMostColumns / 2>(queries, work.depth, panels, num_words, num_keys, work.scores, largest,
                                              ahead);
  } else {
    score_rows<Math, kRows, kMostColumns>(queries, work.depth, panels, num_words, num_keys, work.scores, largest, ahead);
  }
  // Most tiles hide nothing: one question for all rows costs less than one for each (1.02 of attention).
  if (earliest_position(work, first, kRows) - tile * kTileKeys + 1 < num_keys) {
    hide_later_keys(work, first, tile, num_keys, largest);
  }
  alignas(64) float bases[16], rescale[16];
  raise_peaks(work, first, largest, bases, rescale);
  for (int64_t row = 0; row < kRows; ++row) {
    Math::weigh(work.scores + row * kTileKeys, num_keys, bases[row], work.weights + row * kTileKeys,
                work.sums_of(work.state_of(work.states, first + row)), rescale[row]);
  }
  float* out = work.state_of(work.states, first);
  const ValueSums sums = {work.weights, panels, work.call->kv.head_dim, visible, out, work.state_size, rescale};
  add_values<Math, kRows, kMostColumns>(sums, 0, ahead);
}

template <class Math>
static void attend_tile(const Work& work, int64_t tile, const float* const* panels, PanelsAhead& ahead) {
  for (int64_t first = 0; first < work.num_queries; first += work.block_size) {
    const int64_t num_rows = lesser(work.block_size, work.num_queries - first);
    const int64_t visible = lesser(kTileKeys, latest_position(work, first, num_rows) - tile * kTileKeys + 1);
    if (visible <= 0) continue;
    switch (num_rows) {
      case 1: attend_rows<Math, 1>(work, first, tile, visible, panels, ahead); break;
      case 2: attend_rows<Math, 2>(work, first, tile, visible, panels, ahead); break;
      case 3: attend_rows<Math, 3>(work, first, tile, visible, panels, ahead); break;
      case 4: attend_rows<Math, 4>(work, first, tile, visible, panels, ahead); break;
      case 5: attend_rows<Math, 5>(work, first, tile, visible, panels, ahead); break;
      default: attend_rows<Math, 6>(work, first, tile, visible, panels, ahead); break;
    }
  }
}

// One tile of one head: met by the queries, and its chunk's state begun or left when it is time.
template <class Math>
static void attend_head(const Work& work, int64_t tile, const float* const* panels, PanelsAhead& ahead) {
  const AttentionUnit& unit = *work.unit;
  const int64_t chunk = tile / kChunkTiles;
  const bool is_chunk_begin = tile % kChunkTiles == 0;
  if (is_chunk_begin || tile == unit.tile_begin) begin_chunk(work, chunk, !is_chunk_begin);
  attend_tile<Math>(work, tile, panels, ahead);
  ahead.fetch_rest();
  if ((tile + 1) % kChunkTiles == 0 || tile + 1 == unit.tile_end) finish_chunk(work, chunk);
}

// From so many queries on a tile of bf16 is widened once and not for each block of them.
static constexpr int64_t kWorthWidening = 24;

// All panels as panels of floats.
static void widen_panels(const Work& work, const float* (&panels)[kTilePanels]) {
  const int64_t head_dim = work.call->kv.head_dim, num_words = kPanelSlots * head_dim / 2;
  for (int64_t i = 0; i < kTilePanels; ++i) {
    float* to = work.tile + i * 4 * num_words;
    widen_lines(panels[i], head_dim / 2, kPanelSlots, to);
    widen_lines(panels[i] + num_words, kPanelSlots / 2, head_dim, to + 2 * num_words);
    panels[i] = to;
  }
}

template <class Math>
static void attend_tile_in_place(const Work& work, const TilePanels& tile_panels, int64_t tile, PanelsAhead ahead) {
  const int64_t offset = (work.kv_head - work.unit->head_begin) * panel_bytes(work.call->kv);
  const float* panels[kTilePanels];
  for (int64_t i = 0; i < kTilePanels; ++i) {
    panels[i] = reinterpret_cast<const float*>(tile_panels.of_first_head[i] + offset);
  }
  if (Math::kWordSteps > 1 && work.num_queries >= kWorthWidening) {
    widen_panels(work, panels);
    return attend_head<FloatMath>(work, tile, panels, ahead);
  }
  attend_head<Math>(work, tile, panels, ahead);
}

template <class Math>
static void attend_gathered_tile(const Work& work, int64_t tile) {
  const KvLayer& kv = work.call->kv;
  gather_panels(kv, *work.unit, tile, work.kv_head, reinterpret_cast<typename Math::Number*>(work.tile));
  const float* panels[kTilePanels];
  for (int64_t i = 0; i < kTilePanels; ++i) panels[i] = work.tile + i * panel_bytes(kv) / 4;
  PanelsAhead nothing{};
  attend_head<Math>(work, tile, panels, nothing);
}

// All tiles of the unit, of each all heads, while what comes next is fetched.
template <class Math>
static void attend_tiles(const Work* works, int64_t num_heads, const AttentionUnit* next) {
  const AttentionUnit& unit = *works[0].unit;
  const KvLayer& kv = works[0].call->kv;
  TilePanels here, after = find_panels(kv, unit, unit.tile_begin);
  for (int64_t tile = unit.tile_begin; tile < unit.tile_end; ++tile) {
    here = after;
    if (tile + 1 < unit.tile_end) {
      after = find_panels(kv, unit, tile + 1);
    } else if (next != nullptr) {
      after = find_panels(kv, *next, next->tile_begin);
    } else {
      after.count = 0;
    }
    for (int64_t head = 0; head < num_heads; ++head) {
      const bool is_last = head + 1 == num_heads;
      const PanelsAhead ahead = is_last ? fetch_later(after, kv, 0) : fetch_later(here, kv, head + 1);
      attend_tile_in_place<Math>(works[head], here, tile, ahead);
    }
  }
}

// `next`: what this thread will probably do after it, or null. Its first panels are fetched beside the last ones here.
template <class Math>
static void attend_unit_as(const AttentionCall& call, const AttentionUnit& unit, const QuerySpan* spans,
                           const AttentionUnit* next, AttentionBuffers buffers) {
  const int64_t num_heads = unit.head_end - unit.head_begin;
  Work works[kMaxHeadsAtOnce];
  for (int64_t head = 0; head < num_heads; ++head) {
    works[head] = set_up(call, unit, unit.head_begin + head, buffers);
    works[head].depth = call.kv.head_dim / Math::kWordNumbers * Math::kWordSteps;
    if (head == 0) find_places(works[0], spans);
    scale_queries<Math>(works[head]);
  }
  if (call.kv.page_size % kPanelSlots == 0) {
    attend_tiles<Math>(works, num_heads, next);
  } else {
    for (int64_t head = 0; head < num_heads; ++head) {
      for (int64_t tile = unit.tile_begin; tile < unit.tile_end; ++tile) attend_gathered_tile<Math>(works[head], tile);
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
  if (!call.kv.is_bf16) return attend_unit_as<FloatMath>(call, unit, spans, next, buffers);
#if defined(__AVX512BF16__)
  attend_unit_as<DotMath>(call, unit, spans, next, buffers);
#else
  attend_unit_as<WidenedMath>(call, unit, spans, next, buffers);
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
