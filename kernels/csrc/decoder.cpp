#include "decoder.h"

#include <stdexcept>
#include <utility>

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

}  // namespace

Decoder::Decoder(const DecoderConfig& config, const KernelTable& table, const float* cos, const float* sin,
                 int num_threads)
    : config_(config), table_(table), crew_(table, num_threads) {
  check_config(config);
  const int64_t angles = config.max_positions * config.head_dim / 2;
  cos_.assign(cos, cos + angles);
  sin_.assign(sin, sin + angles);
  layers_.resize(config.num_layers);
  for (int thread = 0; thread < this->num_threads(); ++thread) single_crews_.push_back(std::make_unique<Crew>(table, 1));
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

}  // namespace headstart
