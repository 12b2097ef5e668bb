#include "attention_plan.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace headstart {
namespace {

// Query rows (tokens x heads of a group) that one unit works on at once: their sums stay in the L2 cache.
constexpr int64_t kMaxUnitQueries = 192;
// A row with more query rows than this gains nothing from reading a tile together with others.
constexpr int64_t kMaxSharedQueries = 64;
// What fetching a tile costs, in query rows that meet it.
constexpr int64_t kTileOverhead = 3;
// Pieces of work a thread, so that the last ones end together.
constexpr int64_t kPiecesPerThread = 4;
// A unit of so few query rows waits for memory. Heads lie side by side there, so it takes them together.
constexpr int64_t kFewQueries = 12;

void require(bool holds, const char* message) {
  if (!holds) throw std::invalid_argument(message);
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A row of the step with at least one query token.
struct Row {
  const int32_t* pages;
  int64_t num_pages;
  int64_t token;
  int64_t num_tokens;
  int64_t num_keys;

  int64_t first_position() const { return num_keys - num_tokens; }
  int64_t num_tiles() const { return ceil_div(num_keys, kTileKeys); }
};

// A unit and the stage that it can run in.
struct Staged {
  AttentionUnit unit;
  int64_t stage;
  int64_t cost;
};

class Planner {
 public:
  Planner(const PageTable& table, const PlanShape& shape) : shape_(shape), page_size_(table.page_size) {
    for (int64_t i = 0; i < table.num_rows; ++i) {
      const int64_t token = table.qo_indptr[i];
      const int64_t count = table.qo_indptr[i + 1] - token;
      if (count == 0) continue;
      const int64_t first = table.kv_indptr[i];
      rows_.push_back({table.kv_indices + first, table.kv_indptr[i + 1] - first, token, count, table.seq_lens[i]});
    }
  }

  AttentionPlan run() {
    set_piece_cost();
    std::vector<const Row*> sharers;
    for (const Row& row : rows_) {
      if (shape_.shares_prefixes && row.num_tokens * group() <= kMaxSharedQueries) {
        sharers.push_back(&row);
      } else {
        add_alone(row);
      }
    }
    add_sharers(sharers);
    return finish();
  }

 private:
  int64_t group() const { return shape_.num_heads / shape_.num_kv_heads; }

  int64_t cost_of(int64_t num_tiles, int64_t num_tokens) const {
    return num_tiles * (kTileOverhead + num_tokens * group());
  }

  // A piece that is costlier is cut, as long as it can be.
  void set_piece_cost() {
    int64_t total = 0;
    for (const Row& row : rows_) total += cost_of(row.num_tiles(), row.num_tokens);
    piece_cost_ = total * shape_.num_kv_heads / (shape_.num_threads * kPiecesPerThread) + 1;
    if (shape_.num_threads == 1) piece_cost_ = INT64_MAX;
  }

  // Neighbours after sorting share the longest beginnings, so that a group is a run of rows.
  void add_sharers(std::vector<const Row*>& rows) {
    std::stable_sort(rows.begin(), rows.end(), [](const Row* a, const Row* b) {
      return std::lexicographical_compare(a->pages, a->pages + a->num_pages, b->pages, b->pages + b->num_pages);
    });
    std::vector<int64_t> alike(rows.size(), 0);  // tiles that a row shares with the one before it
    for (size_t i = 1; i < rows.size(); ++i) {
      const int64_t most = std::min(rows[i - 1]->num_pages, rows[i]->num_pages);
      const auto end = std::mismatch(rows[i]->pages, rows[i]->pages + most, rows[i - 1]->pages).first;
      alike[i] = (end - rows[i]->pages) * page_size_ / kTileKeys;
    }
    add_runs(rows, alike, {0, 0});
  }

  struct Reached {
    int64_t tile;   // everything before it is planned
    int64_t stage;  // of the unit that leaves the chunk's state, when the tile lies within a chunk
  };

  // Cuts rows into runs that share a tile beyond the one reached. A row whose own queries begin there goes alone.
  void add_runs(const std::vector<const Row*>& rows, const std::vector<int64_t>& alike, Reached reached) {
    std::vector<const Row*> run;
    std::vector<int64_t> run_alike;
    int64_t link = 0;  // tiles shared with the last row of the run
    for (size_t i = 0; i < rows.size(); ++i) {
      link = run.empty() ? 0 : std::min(link, alike[i]);
      if (rows[i]->first_position() / kTileKeys <= reached.tile) {
        add_rest(*rows[i], reached);
        continue;
      }
      if (!run.empty() && link <= reached.tile) {
        add_run(run, run_alike, reached);
        run.clear();
        run_alike.clear();
      }
      run.push_back(rows[i]);
      run_alike.push_back(link);
      link = INT64_MAX;
    }
    if (!run.empty()) add_run(run, run_alike, reached);
  }

  void add_run(const std::vector<const Row*>& rows, const std::vector<int64_t>& alike, Reached reached) {
    if (rows.size() == 1) return add_rest(*rows[0], reached);
    int64_t end = rows[0]->first_position() / kTileKeys;
    for (size_t i = 1; i < rows.size(); ++i) {
      end = std::min({end, alike[i], rows[i]->first_position() / kTileKeys});
    }
    Reached next = {end, reached.stage};
    for (size_t i = 0; i < rows.size();) {
      const int64_t span_begin = static_cast<int64_t>(plan_.spans.size());
      for (int64_t queries = 0; i < rows.size(); ++i) {
        queries += rows[i]->num_tokens * group();
        const bool is_first = span_begin == static_cast<int64_t>(plan_.spans.size());
        if (queries > kMaxUnitQueries && !is_first) break;
        add_span(*rows[i]);
      }
      next.stage = add_pieces(*rows[i - 1], reached, end, span_begin);
    }
    add_runs(rows, alike, next);
  }

  // The tiles of one row from the one reached to its last.
  void add_rest(const Row& row, Reached reached) {
    if (reached.tile == 0) return add_alone(row);
    const int64_t span_begin = static_cast<int64_t>(plan_.spans.size());
    add_span(row);
    add_pieces(row, reached, row.num_tiles(), span_begin);
  }

  // A row that shares nothing: whole units where there are enough of them, else chunks for several threads.
  void add_alone(const Row& row) {
    const int64_t most = std::max<int64_t>(1, kMaxUnitQueries / group());
    if (row.num_tokens <= most && cost_of(row.num_tiles(), row.num_tokens) > piece_cost_ &&
        row.num_tiles() > kChunkTiles) {
      const int64_t span_begin = static_cast<int64_t>(plan_.spans.size());
      add_span(row);
      add_pieces(row, {0, 0}, row.num_tiles(), span_begin);
      return;
    }
    const int64_t size = ceil_div(row.num_tokens, ceil_div(row.num_tokens, most));
    for (int64_t i = 0; i < row.num_tokens; i += size) {
      const int64_t count = std::min(size, row.num_tokens - i);
      const int64_t position = row.first_position() + i;
      const int64_t span_begin = static_cast<int64_t>(plan_.spans.size());
      plan_.spans.push_back({row.token + i, count, position, -1, 0});
      const int64_t end = ceil_div(position + count, kTileKeys);
      add_unit({row.pages, row.num_keys, 0, end, 0, 1, span_begin, span_begin + 1, count, true}, 0);
    }
  }

  // The row's tokens as a span with states; the same slots whenever the row is named again.
  void add_span(const Row& row) {
    const size_t index = static_cast<size_t>(&row - rows_.data());
    first_state_.resize(rows_.size(), -1);
    const int64_t num_chunks = ceil_div(row.num_keys, kChunkKeys);
    if (first_state_[index] < 0) {
      first_state_[index] = plan_.num_states;
      plan_.num_states += row.num_tokens * num_chunks;
      plan_.merged_spans.push_back(static_cast<int64_t>(plan_.spans.size()));
    }
    plan_.spans.push_back({row.token, row.num_tokens, row.first_position(), first_state_[index], num_chunks});
  }

  // Units for tiles reached.tile .. end - 1 of the spans from span_begin on, cut at chunks. Returns the last's stage.
  int64_t add_pieces(const Row& row, Reached reached, int64_t end, int64_t span_begin) {
    const int64_t span_end = static_cast<int64_t>(plan_.spans.size());
    int64_t num_tokens = 0;
    for (int64_t i = span_begin; i < span_end; ++i) num_tokens += plan_.spans[static_cast<size_t>(i)].count;
    const int64_t chunks = std::max<int64_t>(1, piece_cost_ / cost_of(kChunkTiles, num_tokens));
    int64_t stage = 0;
    for (int64_t tile = reached.tile; tile < end;) {
      const bool is_within = tile % kChunkTiles != 0;
      const int64_t length = is_within ? kChunkTiles - tile % kChunkTiles : kChunkTiles * std::min(chunks, end);
      const int64_t next = std::min(end, tile + length);
      stage = is_within ? reached.stage + 1 : 0;
      add_unit({row.pages, row.num_keys, tile, next, 0, 1, span_begin, span_end, num_tokens, false}, stage);
      tile = next;
    }
    return stage;
  }

  void add_unit(const AttentionUnit& unit, int64_t stage) {
    plan_.max_unit_tokens = std::max(plan_.max_unit_tokens, unit.num_tokens);
    staged_.push_back({unit, stage, cost_of(unit.tile_end - unit.tile_begin, unit.num_tokens)});
  }

  // All heads in one unit where that leaves every thread its pieces, else a unit for each head.
  void split_heads() {
    std::vector<int64_t> num_small;
    const auto is_small = [&](const Staged& staged) { return staged.unit.num_tokens * group() <= kFewQueries; };
    for (const Staged& staged : staged_) {
      num_small.resize(std::max(num_small.size(), static_cast<size_t>(staged.stage) + 1), 0);
      num_small[static_cast<size_t>(staged.stage)] += is_small(staged);
    }
    std::vector<Staged> split;
    for (const Staged& whole : staged_) {
      const bool is_many = num_small[static_cast<size_t>(whole.stage)] >= shape_.num_threads * kPiecesPerThread;
      const int64_t at_once = is_small(whole) && is_many ? kMaxHeadsAtOnce : 1;
      for (int64_t head = 0; head < shape_.num_kv_heads; head += at_once) {
        Staged part = whole;
        part.unit.head_begin = head;
        part.unit.head_end = std::min(shape_.num_kv_heads, head + at_once);
        part.cost *= part.unit.head_end - head;
        plan_.max_unit_heads = std::max(plan_.max_unit_heads, part.unit.head_end - head);
        split.push_back(part);
      }
    }
    staged_ = std::move(split);
  }

  AttentionPlan finish() {
    split_heads();
    std::stable_sort(staged_.begin(), staged_.end(), [](const Staged& a, const Staged& b) {
      return a.stage != b.stage ? a.stage < b.stage : a.cost > b.cost;
    });
    for (size_t i = 0; i < staged_.size(); ++i) {
      if (i > 0 && staged_[i].stage != staged_[i - 1].stage) plan_.stage_ends.push_back(static_cast<int64_t>(i));
      plan_.units.push_back(staged_[i].unit);
    }
    if (!staged_.empty()) plan_.stage_ends.push_back(static_cast<int64_t>(staged_.size()));
    return std::move(plan_);
  }

  const PlanShape shape_;
  const int64_t page_size_;
  std::vector<Row> rows_;
  std::vector<int64_t> first_state_;
  std::vector<Staged> staged_;
  int64_t piece_cost_ = 0;
  AttentionPlan plan_;
};

}  // namespace

void check_page_table(const PageTable& table, int64_t num_indices) {
  require(table.page_size >= 1, "page_size: must be at least 1");
  require(table.qo_indptr[0] == 0, "qo_indptr: must start at 0");
  require(table.kv_indptr[0] == 0, "kv_indptr: must start at 0");
  for (int64_t i = 0; i < table.num_rows; ++i) {
    const int64_t queries = table.qo_indptr[i + 1] - table.qo_indptr[i];
    const int64_t pages = table.kv_indptr[i + 1] - table.kv_indptr[i];
    require(table.seq_lens[i] >= 0, "seq_lens: must not be negative");
    require(queries >= 0 && queries <= table.seq_lens[i], "qo_indptr: a row has 0 to seq_len query tokens");
    require(pages == ceil_div(table.seq_lens[i], table.page_size),
            "kv_indptr: a row has ceil(seq_len / page_size) pages");
  }
  require(table.kv_indptr[table.num_rows] == num_indices, "kv_indptr: must end at the length of kv_indices");
  for (int64_t i = 0; i < num_indices; ++i) require(table.kv_indices[i] >= 0, "kv_indices: must not be negative");
}

AttentionPlan plan_attention(const PageTable& table, const PlanShape& shape) {
  require(shape.num_kv_heads > 0, "num_kv_heads: must be at least 1");
  require(shape.num_heads > 0 && shape.num_heads % shape.num_kv_heads == 0,
          "num_heads: must be a multiple of num_kv_heads");
  require(shape.num_threads > 0, "num_threads: must be at least 1");
  return Planner(table, shape).run();
}

int64_t count_tile_reads(const AttentionPlan& plan) {
  int64_t count = 0;
  for (const AttentionUnit& unit : plan.units) {
    if (unit.head_begin == 0) count += unit.tile_end - unit.tile_begin;
  }
  return count;
}

}  // namespace headstart
