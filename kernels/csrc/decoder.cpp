#include "decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "packed_row.h"

namespace headstart {
namespace {

void require(bool holds, const std::string& text) {
  if (!holds) throw std::invalid_argument(text);
}

void check_config(const DecoderConfig& config) {
  const std::pair<const char*, int64_t> sizes[] = {
      {"hidden_size", config.hidden_size},   {"intermediate_size", config.intermediate_size},
      {"num_layers", config.num_layers},     {"num_heads", config.num_heads},
      {"num_kv_heads", config.num_kv_heads}, {"head_dim", config.head_dim},
      {"vocab_size", config.vocab_size},     {"num_pages", config.num_pages},
      {"page_size", config.page_size},       {"max_positions", config.max_positions}};
  for (const auto& [name, value] : sizes) require(value >= 1, std::string(name) + ": must be at least 1");
  require(config.num_heads % config.num_kv_heads == 0, "num_kv_heads: must divide num_heads");
  require(config.head_dim % 2 == 0, "head_dim: must be even");
}

// Tokens that one task of an element-wise stage treats: enough that handing it out costs nothing beside it.
constexpr int64_t kTokensPerTask = 8;

template <typename Fn>
void for_tokens(ThreadPool& pool, int64_t num_tokens, Fn fn) {
  const int64_t tasks = (num_tokens + kTokensPerTask - 1) / kTokensPerTask;
  pool.run(tasks, [&](int64_t task, int) {
    const int64_t end = std::min(num_tokens, (task + 1) * kTokensPerTask);
    for (int64_t token = task * kTokensPerTask; token < end; ++token) fn(token);
  });
}

}  // namespace

Decoder::Decoder(const DecoderConfig& config, const KernelTable& table, const float* cos, const float* sin,
                 int num_threads)
    : config_(config), table_(table), pool_(num_threads) {
  check_config(config);
  const int64_t angles = config.max_positions * config.head_dim / 2;
  cos_.assign(cos, cos + angles);
  sin_.assign(sin, sin + angles);
  layers_.resize(config.num_layers);
  kv_ = MappedMemory(kv_layer_bytes() * config.num_layers);
}

int64_t Decoder::num_panels() const {
  return (config_.num_pages * config_.page_size + kPanelSlots - 1) / kPanelSlots;
}

size_t Decoder::kv_layer_bytes() const {
  return static_cast<size_t>(num_panels() * 2 * kPanelSlots * kv_size()) * (config_.is_bf16 ? 2 : 4);
}

void* Decoder::kv_layer(int64_t layer) const { return kv_.data() + layer * kv_layer_bytes(); }

StepLimits Decoder::limits() const {
  return {config_.vocab_size, config_.max_positions, config_.num_pages, config_.page_size};
}

Decoder::MatrixPlace Decoder::find_matrix(const std::string& name, Layer& layer) {
  const int64_t hidden = config_.hidden_size, inner = config_.intermediate_size;
  if (name == "qkv") return {&layer.qkv, qkv_size(), hidden};
  if (name == "out") return {&layer.out, hidden, q_size()};
  if (name == "gate_up") return {&layer.gate_up, 2 * inner, hidden};
  if (name == "down") return {&layer.down, hidden, inner};
  if (name == "embedding") return {&embedding_, config_.vocab_size, hidden};
  if (name == "lm_head") return {&lm_head_, config_.vocab_size, hidden};
  return {};
}

Decoder::VectorPlace Decoder::find_vector(const std::string& name, Layer& layer) {
  if (name == "input_norm") return {&layer.input_norm, config_.hidden_size};
  if (name == "post_norm") return {&layer.post_norm, config_.hidden_size};
  if (name == "qkv_bias") return {&layer.qkv_bias, qkv_size()};
  if (name == "out_bias") return {&layer.out_bias, config_.hidden_size};
  if (name == "q_norm") return {&layer.q_norm, config_.head_dim};
  if (name == "k_norm") return {&layer.k_norm, config_.head_dim};
  if (name == "final_norm") return {&final_norm_, config_.hidden_size};
  return {};
}

void Decoder::load(const std::string& name, int64_t layer, const StoredRows& rows) {
  require(layer >= 0 && layer < config_.num_layers, "layer: must lie in [0, num_layers)");
  const VectorPlace vector = find_vector(name, layers_[layer]);
  if (vector.values) {
    require(rows.num_rows == 1 && rows.row_size() == vector.size,
            "values: " + name + " must have " + std::to_string(vector.size) + " numbers");
    vector.values->resize(vector.size);
    rows.read(0, vector.values->data());
    return;
  }
  *matrix_place(name, layer, rows.num_rows, rows.row_size()) =
      pack_rows(arena_, rows, config_.is_bf16 ? PackedWeight::Type::bf16 : PackedWeight::Type::f32);
}

void Decoder::load_blocks(const std::string& name, int64_t layer, const StoredRows& rows) {
  require(config_.is_bf16, "type: blocks need a decoder that is_bf16");
  require(layer >= 0 && layer < config_.num_layers, "layer: must lie in [0, num_layers)");
  *matrix_place(name, layer, rows.num_rows, rows.row_size()) = pack_blocks(arena_, rows);
}

PackedWeight* Decoder::matrix_place(const std::string& name, int64_t layer, int64_t n, int64_t k) {
  const MatrixPlace matrix = find_matrix(name, layers_[layer]);
  require(matrix.weight != nullptr, "name: there is no weight " + name);
  require(n == matrix.n && k == matrix.k, "values: " + name + " must be [" + std::to_string(matrix.n) + ", " +
                                              std::to_string(matrix.k) + "]");
  return matrix.weight;
}

void Decoder::check_complete() const {
  const auto check = [](bool has, const char* name) { require(has, std::string("weights: ") + name + " is missing"); };
  check(embedding_.memory != nullptr, "embedding");
  check(!final_norm_.empty(), "final_norm");
  for (const Layer& layer : layers_) {
    check(!layer.input_norm.empty() && !layer.post_norm.empty(), "a norm");
    check(layer.qkv.memory && layer.out.memory && layer.gate_up.memory && layer.down.memory, "a matrix");
    check(layer.q_norm.empty() == layer.k_norm.empty(), "q_norm or k_norm");
  }
}

void Decoder::reserve(int64_t num_tokens) {
  if (num_tokens <= token_capacity_) return;
  const int64_t capacity = std::max(num_tokens, 2 * token_capacity_);
  const int64_t hidden = config_.hidden_size, inner = config_.intermediate_size;
  hidden_ = MappedMemory(capacity * hidden * sizeof(float));
  added_ = MappedMemory(capacity * hidden * sizeof(float));
  inputs_ = MappedMemory(capacity * std::max({hidden, q_size(), inner}) * sizeof(float));
  projected_ = MappedMemory(capacity * std::max(qkv_size(), 2 * inner) * sizeof(float));
  token_capacity_ = capacity;
}

void Decoder::step(const Step& step, float* logits) {
  kv_population_.begin_step();
  reserve(std::max(step.num_tokens, step.num_logits));
  embed(step);
  AttentionPlan plan = plan_of(step);
  const int64_t last = config_.num_layers - 1;
  for (int64_t layer = 0; layer < last; ++layer) {
    project(layer, step);
    attend(layer, step.num_tokens, plan);
    feed_forward(layers_[layer], step.num_tokens, &layers_[layer + 1]);
  }
  project(last, step);
  const StepTail tail(step);
  if (tail.step.num_tokens < step.num_tokens) {
    keep(tail.tokens);
    plan = plan_of(tail.step);
  }
  attend(last, tail.step.num_tokens, plan);
  feed_forward(layers_[last], tail.step.num_tokens, nullptr);
  write_logits(tail.step, logits);
  kv_population_.end_step(kv_);
}

AttentionPlan Decoder::plan_of(const Step& step) const {
  const PageTable table{step.qo_indptr, step.kv_indptr,    step.kv_indices,
                        step.seq_lens,  step.num_rows, config_.page_size};
  return plan_attention(table, {config_.num_heads, config_.num_kv_heads, pool_.size(), true});
}

void Decoder::keep(const std::vector<int32_t>& tokens) {
  float* qkv = floats(projected_);
  for (size_t line = 0; line < tokens.size(); ++line) {
    std::copy_n(hidden(tokens[line]), config_.hidden_size, hidden(line));
    std::copy_n(qkv + tokens[line] * qkv_size(), q_size(), qkv + line * qkv_size());
  }
}

void Decoder::multiply(const PackedWeight& weight, int64_t m, float* y, const std::vector<float>& bias,
                       const PackedWeight* next) {
  GemmCall call;
  call.weight = &weight;
  call.x = inputs_.data();
  call.m = m;
  call.ldx = weight.k;
  call.y = y;
  call.ldy = weight.n;
  call.bias = bias.empty() ? nullptr : bias.data();
  call.next = next;
  call.quantised = quantised_inputs_;
  gemm_with(table_, pool_, call);
}

void Decoder::embed(const Step& step) {
  const Layer& first = layers_[0];
  begin_inputs(step.num_tokens, first.qkv);
  for_tokens(pool_, step.num_tokens, [&](int64_t token) {
    unpack_row(embedding_, step.token_ids[token], hidden(token));
    normalise(hidden(token), first.input_norm, token, first.qkv);
  });
}

void Decoder::normalise(const float* x, const std::vector<float>& norm, int64_t line, const PackedWeight& taker) {
  table_.rms_norm(x, norm.data(), config_.rms_norm_eps, config_.hidden_size, input(line, taker), taker.takes_bf16());
  finish_input(line, taker);
}

void Decoder::begin_inputs(int64_t m, const PackedWeight& taker) {
  quantised_inputs_ = taker.is_quantised() ? quantised_buffer_.take(m, taker.k) : QuantisedX{};
}

void Decoder::finish_input(int64_t line, const PackedWeight& taker) {
  if (!taker.is_quantised()) return;
  table_.quantise_row(reinterpret_cast<const float*>(input(line, taker)), quantised_inputs_, line);
}

void Decoder::add(int64_t num_tokens, const std::vector<float>* norm, const PackedWeight& taker) {
  const float* added = floats(added_);
  if (norm) begin_inputs(num_tokens, taker);
  for_tokens(pool_, num_tokens, [&](int64_t token) {
    table_.add_row(hidden(token), added + token * config_.hidden_size, config_.hidden_size);
    if (norm) normalise(hidden(token), *norm, token, taker);
  });
}

KvLayer Decoder::kv_of(int64_t layer) const {
  return {kv_layer(layer), config_.is_bf16, config_.page_size, config_.num_kv_heads, config_.head_dim};
}

void Decoder::project(int64_t layer, const Step& step) {
  const Layer& weights = layers_[layer];
  float* qkv = floats(projected_);
  multiply(weights.qkv, step.num_tokens, qkv, weights.qkv_bias, &weights.out);
  const KvLayer kv = kv_of(layer);
  for_tokens(pool_, step.num_tokens, [&](int64_t token) {
    float* q = qkv + token * qkv_size();
    turn(weights, q, step.positions[token]);
    table_.write_kv(kv, q + q_size(), q + q_size() + kv_size(), step.slots[token]);
  });
}

void Decoder::attend(int64_t layer, int64_t num_tokens, const AttentionPlan& plan) {
  const Layer& weights = layers_[layer];
  AttentionCall call;
  call.q = floats(projected_);
  call.ldq = qkv_size();
  call.kv = kv_of(layer);
  call.num_heads = config_.num_heads;
  call.scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
  call.out = inputs_.data();
  call.ldo = q_size();
  call.is_out_bf16 = weights.out.takes_bf16();
  quantised_inputs_ = {};  // attention writes a line head by head: the product makes integers of it
  headstart::attend(pool_, table_, plan, attention_scratch_, call);
  multiply(weights.out, num_tokens, floats(added_), weights.out_bias, &weights.gate_up);
  add(num_tokens, &weights.post_norm, weights.gate_up);
}

void Decoder::turn(const Layer& weights, float* q, int32_t position) {
  const int64_t head_dim = config_.head_dim, half = head_dim / 2;
  const int64_t num_turned = config_.num_heads + config_.num_kv_heads;
  if (!weights.q_norm.empty()) {
    for (int64_t head = 0; head < num_turned; ++head) {
      const float* norm = head < config_.num_heads ? weights.q_norm.data() : weights.k_norm.data();
      table_.rms_norm(q + head * head_dim, norm, config_.rms_norm_eps, head_dim, q + head * head_dim, false);
    }
  }
  table_.rotate(q, cos_.data() + position * half, sin_.data() + position * half, num_turned, head_dim);
}

void Decoder::feed_forward(const Layer& weights, int64_t num_tokens, const Layer* next) {
  const int64_t inner = config_.intermediate_size;
  float* gate_up = floats(projected_);
  multiply(weights.gate_up, num_tokens, gate_up, {}, &weights.down);
  begin_inputs(num_tokens, weights.down);
  for_tokens(pool_, num_tokens, [&](int64_t token) {
    const float* gate = gate_up + token * 2 * inner;
    table_.silu_mul(gate, gate + inner, inner, input(token, weights.down), weights.down.takes_bf16());
    finish_input(token, weights.down);
  });
  const PackedWeight& after = next != nullptr ? next->qkv : head();
  multiply(weights.down, num_tokens, floats(added_), {}, &after);
  add(num_tokens, next != nullptr ? &next->input_norm : nullptr, after);
}

void Decoder::write_logits(const Step& step, float* logits) {
  begin_inputs(step.num_logits, head());
  for_tokens(pool_, step.num_logits, [&](int64_t line) {
    normalise(hidden(step.logit_rows[line]), final_norm_, line, head());
  });
  multiply(head(), step.num_logits, logits, {}, &layers_[0].qkv);
}

}  // namespace headstart
