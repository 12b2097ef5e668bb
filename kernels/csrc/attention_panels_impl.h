// Where the panels of one tile of a K/V head lie, and fetching them ahead of their use.
#pragma once

#include "kv_write_impl.h"

namespace headstart {
namespace HEADSTART_ISA_NAMESPACE {

static constexpr int64_t kTilePanels = kTileKeys / kPanelSlots;

struct TilePanels {
  const char* of_first_head[kTilePanels];  // of the unit; its other heads follow. Readable even after `count`
  int64_t count;                           // that hold keys
};

// Pages must be whole panels.
static TilePanels find_panels(const KvLayer& kv, const AttentionUnit& unit, int64_t tile) {
  const int64_t head_bytes = panel_bytes(kv), page_panels = kv.page_size / kPanelSlots, first = tile * kTileKeys;
  const char* storage = static_cast<const char*>(kv.data) + unit.head_begin * head_bytes;
  int64_t page = first / kv.page_size, within = first % kv.page_size / kPanelSlots;
  TilePanels found;
  found.count = (lesser(kTileKeys, unit.num_keys - first) + kPanelSlots - 1) / kPanelSlots;
  for (int64_t i = 0; i < found.count; ++i) {
    found.of_first_head[i] = storage + (unit.pages[page] * page_panels + within) * kv.num_kv_heads * head_bytes;
    if (++within == page_panels) ++page, within = 0;
  }
  for (int64_t i = found.count; i < kTilePanels; ++i) found.of_first_head[i] = found.of_first_head[0];
  return found;
}

// Puts one head's tile together slot by slot, for pages that are no whole panels: slow, and right for every page size.
template <typename T>
static void gather_panels(const KvLayer& kv, const AttentionUnit& unit, int64_t tile, int64_t kv_head, T* to) {
  const int64_t first = tile * kTileKeys, count = lesser(kTileKeys, unit.num_keys - first);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t position = first + i;
    const int64_t slot = unit.pages[position / kv.page_size] * kv.page_size + position % kv.page_size;
    T key[kMaxHeadDim], value[kMaxHeadDim];
    read_column(panel_of<T>(kv, slot, kv_head), slot % kPanelSlots, kv.head_dim, key, value);
    write_column(to + i / kPanelSlots * 2 * kPanelSlots * kv.head_dim, i % kPanelSlots, kv.head_dim, key, value);
  }
}

// Fetches panels ahead of their use, some lines at a time between other work: a core has only so many lines on their
// way, and asking for more waits. Into the L2 cache (2): in the L1 cache they would push out the tile at work.
struct PanelsAhead {
  const char* panels[kTilePanels];
  int64_t num_bytes;  // of each
  int64_t count;      // 0: there is nothing to fetch
  int64_t panel, byte;

  template <int kLines>
  inline __attribute__((always_inline)) void fetch() {
    if (panel >= count) return;
    const char* place = panels[panel] + byte;
#pragma GCC unroll 4
    for (int line = 0; line < kLines; ++line) __builtin_prefetch(place + line * 64, 0, 2);
    byte += kLines * 64;
    if (byte >= num_bytes) byte = 0, ++panel;
  }
  inline void fetch_rest() {
    while (panel < count) fetch<4>();
  }
};

// Those of the unit's head `head`, counted from its first.
static inline PanelsAhead fetch_later(const TilePanels& tile, const KvLayer& kv, int64_t head) {
  PanelsAhead ahead{};
  ahead.num_bytes = panel_bytes(kv);
  ahead.count = tile.count;
  for (int64_t i = 0; i < tile.count; ++i) ahead.panels[i] = tile.of_first_head[i] + head * ahead.num_bytes;
  return ahead;
}

}  // namespace HEADSTART_ISA_NAMESPACE
}  // namespace headstart
