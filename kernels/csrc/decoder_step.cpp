// One step of a decoder: between two attentions, tokens go through products and norms range by range.
#include <algorithm>
#include <cmath>

#include "decoder.h"
#include "packed_row.h"

namespace headstart {
namespace {

// Of a range that one thread takes, at most: few enough that all of a model of this size but its weights stays in the L2
// cache, enough that reading those is little beside multiplying.
constexpr int64_t kRangeTokens = 64;

MappedMemory floats_for(int64_t count) { return MappedMemory(static_cast<size_t>(count) * sizeof(float)); }

const float* data_or_null(const std::vector<float>& values) { return values.empty() ? nullptr : values.data(); }

}  // namespace

void Decoder::step(const Step& step, float* logits) {
  kv_population_.begin_step();
  reserve(step.num_tokens);
  for_ranges(step.num_tokens, [&](Crew& crew, TokenRange tokens) {
    embed(crew, tokens, step);
    project(crew, tokens, 0, step);
  });
  AttentionPlan plan = plan_of(step);
  const int64_t last = config_.num_layers - 1;
  for (int64_t layer = 0; layer < last; ++layer) {
    attend(layer, plan);
    for_ranges(step.num_tokens, [&](Crew& crew, TokenRange tokens) {
      feed_forward(crew, tokens, layer);
      project(crew, tokens, layer + 1, step);
    });
  }
  const StepTail tail(step);
  if (tail.step.num_tokens < step.num_tokens) {
    keep(tail.tokens);
    plan = plan_of(tail.step);
  }
  attend(last, plan);
  for_ranges(tail.step.num_tokens, [&](Crew& crew, TokenRange tokens) { feed_forward(crew, tokens, last); });
  write_logits(tail.step, logits);
  kv_population_.end_step(kv_);
}

void Decoder::reserve(int64_t num_tokens) {
  if (num_tokens <= token_capacity_) return;
  const int64_t capacity = std::max(num_tokens, 2 * token_capacity_);
  hidden_ = floats_for(capacity * config_.hidden_size);
  attended_ = floats_for(capacity * q_size());
  qkv_ = floats_for(capacity * qkv_size());
  token_capacity_ = capacity;
}

template <typename Fn>
void Decoder::for_ranges(int64_t num_tokens, Fn fn) {
  const int64_t input_width = std::max({config_.hidden_size, q_size(), config_.intermediate_size});
  const int64_t product_width = 2 * config_.intermediate_size;
  const int64_t num_threads = crew_.pool().size();
  if (num_tokens < kRangeTokens * num_threads) {
    crew_.reserve(num_tokens, input_width, product_width);
    return fn(crew_, {0, num_tokens});
  }
  const int64_t rounds = (num_tokens + kRangeTokens * num_threads - 1) / (kRangeTokens * num_threads);
  const int64_t num_ranges = rounds * num_threads;
  for (const auto& crew : single_crews_) crew->reserve(num_tokens / num_ranges + 1, input_width, product_width);
  crew_.pool().run(num_ranges, [&](int64_t range, int thread) {
    const int64_t begin = range * num_tokens / num_ranges, end = (range + 1) * num_tokens / num_ranges;
    fn(*single_crews_[thread], {begin, end - begin});
  });
}

AttentionPlan Decoder::plan_of(const Step& step) const {
  const PageTable table{step.qo_indptr, step.kv_indptr,    step.kv_indices,
                        step.seq_lens,  step.num_rows, config_.page_size};
  return plan_attention(table, {config_.num_heads, config_.num_kv_heads, num_threads(), true});
}

void Decoder::keep(const std::vector<int32_t>& tokens) {
  for (size_t line = 0; line < tokens.size(); ++line) {
    std::copy_n(hidden(tokens[line]), config_.hidden_size, hidden(line));
    std::copy_n(qkv(tokens[line]), q_size(), qkv(line));
  }
}

void Decoder::embed(Crew& crew, TokenRange tokens, const Step& step) {
  crew.for_lines(tokens.count, [&](int64_t line) {
    unpack_row(embedding_, step.token_ids[tokens.begin + line], hidden(tokens.begin + line));
  });
}

void Decoder::normalise(Crew& crew, TokenRange tokens, const std::vector<float>& norm, const PackedWeight& taker) {
  crew.make_inputs(tokens.count, taker, [&](int64_t line, void* to, bool is_bf16) {
    table_.rms_norm(hidden(tokens.begin + line), norm.data(), config_.rms_norm_eps, config_.hidden_size, to, is_bf16);
  });
}

void Decoder::project(Crew& crew, TokenRange tokens, int64_t layer, const Step& step) {
  const Layer& weights = layers_[layer];
  normalise(crew, tokens, weights.input_norm, weights.qkv);
  crew.multiply(tokens.count, {weights.qkv, qkv(tokens.begin), &weights.out, data_or_null(weights.qkv_bias)});
  const KvLayer kv = kv_of(layer);
  crew.for_lines(tokens.count, [&](int64_t line) {
    const int64_t token = tokens.begin + line;
    float* q = qkv(token);
    turn(weights, q, step.positions[token]);
    table_.write_kv(kv, q + q_size(), q + q_size() + kv_size(), step.slots[token]);
  });
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

void Decoder::attend(int64_t layer, const AttentionPlan& plan) {
  AttentionCall call;
  call.q = qkv(0);
  call.ldq = qkv_size();
  call.kv = kv_of(layer);
  call.num_heads = config_.num_heads;
  call.scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
  call.out = attended_.data();
  call.ldo = q_size();
  call.is_out_bf16 = layers_[layer].out.takes_bf16();
  headstart::attend(crew_.pool(), table_, plan, attention_scratch_, call);
}

void Decoder::feed_forward(Crew& crew, TokenRange tokens, int64_t layer) {
  const Layer& weights = layers_[layer];
  const int64_t inner = config_.intermediate_size, count = tokens.count;
  const PackedWeight& after = layer + 1 < config_.num_layers ? layers_[layer + 1].qkv : head();
  const uint8_t* attended = attended_.data() + tokens.begin * q_size() * (weights.out.takes_bf16() ? 2 : 4);
  crew.multiply_from(count, attended, {weights.out, hidden(tokens.begin), &weights.gate_up,
                                       data_or_null(weights.out_bias), true});
  normalise(crew, tokens, weights.post_norm, weights.gate_up);
  crew.multiply(count, {weights.gate_up, crew.products(), &weights.down});
  crew.make_inputs(count, weights.down, [&](int64_t line, void* to, bool is_bf16) {
    const float* gate = crew.products() + line * 2 * inner;
    table_.silu_mul(gate, gate + inner, inner, to, is_bf16);
  });
  crew.multiply(count, {weights.down, hidden(tokens.begin), &after, nullptr, true});
}

void Decoder::write_logits(const Step& step, float* logits) {
  crew_.reserve(step.num_logits, config_.hidden_size, 0);
  crew_.make_inputs(step.num_logits, head(), [&](int64_t line, void* to, bool is_bf16) {
    table_.rms_norm(hidden(step.logit_rows[line]), final_norm_.data(), config_.rms_norm_eps, config_.hidden_size, to,
                    is_bf16);
  });
  crew_.multiply(step.num_logits, {head(), logits, &layers_[0].qkv});
}

}  // namespace headstart
