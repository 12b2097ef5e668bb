// The whole decoder stack of the Llama family: one call a step, from token ids to logits.
//
// Layer-wise: all K/V of a layer are written before its attention reads, so that rows of one step may share pages that
// this very step fills. The residual stream, norms, softmax and logits are float32; with bf16 weights only the inputs
// of matrix products and the K/V are bf16. Every operation treats a token alone or sums in one fixed order, so a
// token's result does not depend on what else is in the batch.
//
// Knows nothing of requests or files. Owns weights, K/V storage and scratch; one thread calls it at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attention.h"
#include "attention_plan.h"
#include "crew.h"
#include "idle_population.h"
#include "kernel_table.h"
#include "mapped_memory.h"
#include "packed_weight.h"
#include "step.h"

namespace headstart {

struct DecoderConfig {
  int64_t hidden_size;
  int64_t intermediate_size;
  int64_t num_layers;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t vocab_size;
  int64_t num_pages;  // the null page among them
  int64_t page_size;
  int64_t max_positions;
  float rms_norm_eps;
  bool is_bf16;  // K/V, and weights but for those loaded as blocks, with the inputs of their products; else float32
};

class Decoder {
 public:
  // cos and sin are [max_positions][head_dim / 2], copied. num_threads 0 means all usable cores.
  // Throws std::invalid_argument that names the number that makes no sense.
  Decoder(const DecoderConfig& config, const KernelTable& table, const float* cos, const float* sin, int num_threads);

  // A matrix, rounded to bf16 when the decoder is_bf16, or a vector as one row, by its name below; layer is ignored for
  // those of the whole model.
  // Matrices: qkv, out, gate_up, down; embedding and lm_head of the whole model. Without lm_head the embedding serves.
  // Vectors: input_norm, post_norm, and where the model has them qkv_bias, out_bias, q_norm, k_norm; final_norm.
  // Throws std::invalid_argument for an unknown name or another shape than the config's.
  void load(const std::string& name, int64_t layer, const StoredRows& rows);

  // A matrix that pack_blocks takes, kept in its blocks: is_bf16 decoders only.
  void load_blocks(const std::string& name, int64_t layer, const StoredRows& rows);

  // Throws std::invalid_argument that names what is missing. Called once, before the first step.
  void check_complete() const;

  // logits is [step.num_logits][vocab_size]. The step must fit (check_step with limits()).
  void step(const Step& step, float* logits);

  StepLimits limits() const;
  const DecoderConfig& config() const { return config_; }
  int num_threads() const { return crew_.pool().size(); }

  // The storage of one layer, as KvLayer says. Page 0 is zero for ever.
  void* kv_layer(int64_t layer) const;
  int64_t num_panels() const;  // of a layer

 private:
  struct Layer {
    PackedWeight qkv, out, gate_up, down;
    std::vector<float> input_norm, post_norm, qkv_bias, out_bias, q_norm, k_norm;
  };
  struct MatrixPlace {
    PackedWeight* weight = nullptr;
    int64_t n = 0, k = 0;
  };
  struct VectorPlace {
    std::vector<float>* values = nullptr;
    int64_t size = 0;
  };

  MatrixPlace find_matrix(const std::string& name, Layer& layer);
  VectorPlace find_vector(const std::string& name, Layer& layer);
  PackedWeight* matrix_place(const std::string& name, int64_t layer, int64_t n, int64_t k);
  void reserve(int64_t num_tokens);

  // Some neighbouring tokens of a step.
  struct TokenRange {
    int64_t begin, count;
  };
  // fn(crew, range) for ranges that make up all tokens: one with all threads where tokens are few, else each with one.
  template <typename Fn>
  void for_ranges(int64_t num_tokens, Fn fn);

  AttentionPlan plan_of(const Step& step) const;
  KvLayer kv_of(int64_t layer) const {
    return {kv_layer(layer), config_.is_bf16, config_.page_size, config_.num_kv_heads, config_.head_dim};
  }
  void embed(Crew& crew, TokenRange tokens, const Step& step);
  // Queries, keys and values of a layer; K/V go into the storage.
  void project(Crew& crew, TokenRange tokens, int64_t layer, const Step& step);
  // attended_ of all tokens of the plan.
  void attend(int64_t layer, const AttentionPlan& plan);
  // What attention and the feed-forward block of a layer add to hidden_.
  void feed_forward(Crew& crew, TokenRange tokens, int64_t layer);
  // Moves what the last layer has of these tokens so far to the lines from 0 on.
  void keep(const std::vector<int32_t>& tokens);
  void write_logits(const Step& step, float* logits);
  // Inputs for `taker` = norm(hidden_).
  void normalise(Crew& crew, TokenRange tokens, const std::vector<float>& norm, const PackedWeight& taker);
  // Norms (where the model has them) and rotates the queries and keys of one token, in place.
  void turn(const Layer& weights, float* q, int32_t position);

  const PackedWeight& head() const { return lm_head_.memory ? lm_head_ : embedding_; }
  static float* floats(const MappedMemory& memory) { return reinterpret_cast<float*>(memory.data()); }
  float* hidden(int64_t token) const { return floats(hidden_) + token * config_.hidden_size; }
  float* qkv(int64_t token) const { return floats(qkv_) + token * qkv_size(); }
  int64_t q_size() const { return config_.num_heads * config_.head_dim; }
  int64_t kv_size() const { return config_.num_kv_heads * config_.head_dim; }
  int64_t qkv_size() const { return q_size() + 2 * kv_size(); }
  size_t kv_layer_bytes() const;

  DecoderConfig config_;
  const KernelTable& table_;
  Crew crew_;  // of all threads
  std::vector<std::unique_ptr<Crew>> single_crews_;  // of each thread
  HugeArena arena_;
  AttentionScratch attention_scratch_;
  std::vector<float> cos_, sin_;
  std::vector<Layer> layers_;
  PackedWeight embedding_, lm_head_;
  std::vector<float> final_norm_;
  MappedMemory kv_;
  IdlePopulation kv_population_;

  // Of one step, row-major [tokens][width]. attended_ is in the type that the layer's weight takes.
  int64_t token_capacity_ = 0;
  MappedMemory hidden_, qkv_, attended_;
};

}  // namespace headstart
