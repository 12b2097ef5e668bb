// One step's batch as the decoder reads it, and the check that makes reading it safe.
// Knows nothing of weights. Owns nothing: the arrays belong to the caller for the length of one call.
#pragma once

#include <cstdint>
#include <vector>

namespace headstart {

// The layout is that of headstart_kernels/metadata.py: row i owns the query tokens qo_indptr[i] .. qo_indptr[i + 1]
// and the pages kv_indices[kv_indptr[i] .. kv_indptr[i + 1]); its query tokens are the last ones of its seq_lens[i].
struct Step {
  const int32_t* token_ids;  // [num_tokens]
  const int32_t* positions;  // [num_tokens]
  const int64_t* slots;      // [num_tokens]: page * page_size + offset, or -1: this token's K/V is not written
  int64_t num_tokens;
  const int32_t* qo_indptr;   // [num_rows + 1]
  const int32_t* kv_indptr;   // [num_rows + 1]
  const int32_t* kv_indices;  // [num_indices]
  const int32_t* seq_lens;    // [num_rows]
  int64_t num_rows;
  int64_t num_indices;
  const int32_t* logit_rows;  // [num_logits]: tokens of the batch
  int64_t num_logits;
};

struct StepLimits {
  int64_t vocab_size;
  int64_t max_positions;
  int64_t num_pages;  // the null page among them
  int64_t page_size;
};

// What the last layer needs of a step besides K/V: the tokens that logits are asked for, and those behind them in their
// rows. Of most prompts that is one token, of a chunk that does not end its prompt none.
struct StepTail {
  // `step` must outlive it.
  explicit StepTail(const Step& whole);
  StepTail(const StepTail&) = delete;

  Step step;  // the same rows with these tokens alone; has no token_ids, positions and slots
  std::vector<int32_t> tokens;  // where they are in the whole step, in ascending order

 private:
  std::vector<int32_t> qo_indptr_, logit_rows_;
};

// Throws std::invalid_argument whose text starts with the name of the argument that is wrong.
void check_step(const Step& step, const StepLimits& limits);

}  // namespace headstart
