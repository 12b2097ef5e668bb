#include "step.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace headstart {
namespace {

void require(bool holds, const char* argument, const std::string& reason) {
  if (!holds) throw std::invalid_argument(std::string(argument) + ": " + reason);
}

void check_range(const int32_t* values, int64_t count, int64_t limit, const char* argument) {
  for (int64_t i = 0; i < count; ++i) {
    require(values[i] >= 0 && values[i] < limit, argument, "must lie in [0, " + std::to_string(limit) + ")");
  }
}

void check_indptr(const int32_t* indptr, int64_t rows, int64_t total, const char* argument) {
  require(indptr[0] == 0, argument, "must start at 0");
  for (int64_t i = 0; i < rows; ++i) require(indptr[i] <= indptr[i + 1], argument, "must not decrease");
  require(indptr[rows] == total, argument, "must end at " + std::to_string(total));
}

// The last tokens of a row, each written to where the page table puts it or nowhere; never to the null page.
void check_tokens(const Step& step, int64_t row, int64_t page_size) {
  const int64_t end = step.qo_indptr[row + 1];
  const int32_t* pages = step.kv_indices + step.kv_indptr[row];
  for (int64_t token = step.qo_indptr[row]; token < end; ++token) {
    const int64_t position = step.positions[token];
    require(position == step.seq_lens[row] - (end - token), "positions", "must be the row's last ones");
    if (step.slots[token] == -1) continue;
    const int64_t page = pages[position / page_size];
    const int64_t slot = page * page_size + position % page_size;
    require(step.slots[token] == slot, "slots", "must be -1 or the token's place");
    require(page != 0, "slots", "the null page is never written");
  }
}

void check_row(const Step& step, int64_t row, int64_t page_size) {
  const int64_t length = step.seq_lens[row];
  const int64_t pages = step.kv_indptr[row + 1] - step.kv_indptr[row];
  require(length >= 0, "seq_lens", "must not be negative");
  require(step.qo_indptr[row + 1] - step.qo_indptr[row] <= length, "qo_indptr",
          "a row has more query tokens than tokens");
  require(pages == (length + page_size - 1) / page_size, "kv_indptr",
          "must give a row ceil(seq_len / page_size) pages");
  for (int64_t i = step.kv_indptr[row]; i < step.kv_indptr[row + 1] && length > 1; ++i) {
    require(step.kv_indices[i] != 0, "kv_indices", "page 0 is for padding rows only");
  }
}

}  // namespace

StepTail::StepTail(const Step& whole) : step(whole), qo_indptr_(whole.num_rows + 1), logit_rows_(whole.num_logits) {
  const int32_t* ends = whole.qo_indptr + 1;
  const auto row_of = [&](int32_t token) { return std::upper_bound(ends, ends + whole.num_rows, token) - ends; };
  std::vector<int32_t> firsts(ends, ends + whole.num_rows);  // of each row's tokens that are kept; its end for none
  for (int64_t i = 0; i < whole.num_logits; ++i) {
    int32_t& first = firsts[row_of(whole.logit_rows[i])];
    first = std::min(first, whole.logit_rows[i]);
  }
  for (int64_t row = 0; row < whole.num_rows; ++row) {
    for (int32_t token = firsts[row]; token < ends[row]; ++token) tokens.push_back(token);
    qo_indptr_[row + 1] = static_cast<int32_t>(tokens.size());
  }
  for (int64_t i = 0; i < whole.num_logits; ++i) {
    const int64_t row = row_of(whole.logit_rows[i]);
    logit_rows_[i] = qo_indptr_[row] + whole.logit_rows[i] - firsts[row];
  }
  step.token_ids = step.positions = nullptr;
  step.slots = nullptr;
  step.num_tokens = static_cast<int64_t>(tokens.size());
  step.qo_indptr = qo_indptr_.data();
  step.logit_rows = logit_rows_.data();
}

void check_step(const Step& step, const StepLimits& limits) {
  check_range(step.token_ids, step.num_tokens, limits.vocab_size, "token_ids");
  check_range(step.positions, step.num_tokens, limits.max_positions, "positions");
  check_range(step.logit_rows, step.num_logits, step.num_tokens, "logit_rows");
  check_indptr(step.qo_indptr, step.num_rows, step.num_tokens, "qo_indptr");
  check_indptr(step.kv_indptr, step.num_rows, step.num_indices, "kv_indptr");
  check_range(step.kv_indices, step.num_indices, limits.num_pages, "kv_indices");
  for (int64_t row = 0; row < step.num_rows; ++row) {
    check_row(step, row, limits.page_size);
    check_tokens(step, row, limits.page_size);
  }
}

}  // namespace headstart
