// The decoder's part of the Python module.
#include "bindings.h"

#include "decoder.h"
#include "step.h"

namespace headstart {
namespace {

DecoderConfig decoder_config(const nb::dict& sizes) {
  const auto size = [&](const char* name) { return nb::cast<int64_t>(sizes[name]); };
  DecoderConfig config{};
  config.hidden_size = size("hidden_size");
  config.intermediate_size = size("intermediate_size");
  config.num_layers = size("num_layers");
  config.num_heads = size("num_heads");
  config.num_kv_heads = size("num_kv_heads");
  config.head_dim = size("head_dim");
  config.vocab_size = size("vocab_size");
  config.num_pages = size("num_pages");
  config.page_size = size("page_size");
  return config;
}

void init_decoder(Decoder* self, const nb::dict& sizes, float rms_norm_eps, bool is_bf16, Matrix<const float> cos,
                  Matrix<const float> sin, int num_threads, const std::string& isa) {
  DecoderConfig config = decoder_config(sizes);
  config.max_positions = static_cast<int64_t>(cos.shape(0));
  config.rms_norm_eps = rms_norm_eps;
  config.is_bf16 = is_bf16;
  const auto half = static_cast<size_t>(config.head_dim / 2);
  require(cos.shape(1) == half, "cos: must have head_dim / 2 columns");
  require(sin.shape(0) == cos.shape(0) && sin.shape(1) == half, "sin: must have the shape of cos");
  new (self) Decoder(config, table_of(isa), cos.data(), sin.data(), num_threads);
}

using Ints = Vector<const int32_t>;

void decoder_step(Decoder& decoder, Ints token_ids, Ints positions, Vector<const int64_t> slots, Ints qo_indptr,
                  Ints kv_indptr, Ints kv_indices, Ints seq_lens, Ints logit_rows, Matrix<float> logits) {
  const size_t tokens = positions.shape(0), rows = seq_lens.shape(0);
  require(token_ids.shape(0) == tokens, "token_ids: " + std::to_string(token_ids.shape(0)) +
                                            " tokens, the metadata has " + std::to_string(tokens));
  require(slots.shape(0) == tokens, "slots: must have one entry a token");
  require(qo_indptr.shape(0) == rows + 1, "qo_indptr: must have " + std::to_string(rows + 1) + " entries");
  require(kv_indptr.shape(0) == rows + 1, "kv_indptr: must have " + std::to_string(rows + 1) + " entries");
  require(logits.shape(0) == logit_rows.shape(0), "logits: must have one row for each of logit_rows");
  require(static_cast<int64_t>(logits.shape(1)) == decoder.config().vocab_size, "logits: must have vocab_size columns");
  Step step{};
  step.token_ids = token_ids.data();
  step.positions = positions.data();
  step.slots = slots.data();
  step.num_tokens = static_cast<int64_t>(tokens);
  step.qo_indptr = qo_indptr.data();
  step.kv_indptr = kv_indptr.data();
  step.kv_indices = kv_indices.data();
  step.seq_lens = seq_lens.data();
  step.num_rows = static_cast<int64_t>(rows);
  step.num_indices = static_cast<int64_t>(kv_indices.shape(0));
  step.logit_rows = logit_rows.data();
  step.num_logits = static_cast<int64_t>(logit_rows.shape(0));
  nb::gil_scoped_release release;
  check_step(step, decoder.limits());
  decoder.step(step, logits.data());
}

// A view: it keeps the decoder alive.
nb::object kv_layer(nb::handle self, int64_t layer) {
  const Decoder& decoder = nb::cast<const Decoder&>(self);
  const DecoderConfig& config = decoder.config();
  require(layer >= 0 && layer < config.num_layers, "layer: must lie in [0, num_layers)");
  const size_t shape[] = {static_cast<size_t>(decoder.num_panels()), static_cast<size_t>(config.num_kv_heads), 2,
                          static_cast<size_t>(kPanelSlots), static_cast<size_t>(config.head_dim)};
  const nb::dlpack::dtype dtype = config.is_bf16 ? nb::dtype<uint16_t>() : nb::dtype<float>();
  return nb::cast(nb::ndarray<nb::numpy>(decoder.kv_layer(layer), 5, shape, self, nullptr, dtype));
}

}  // namespace

void bind_decoder(nb::module_& m) {
  nb::class_<Decoder>(m, "Decoder")
      .def("__init__", &init_decoder, "sizes"_a, "rms_norm_eps"_a, "is_bf16"_a, "cos"_a, "sin"_a, "num_threads"_a = 0,
           "isa"_a = "")
      .def_prop_ro("num_threads", &Decoder::num_threads)
      .def("load", [](Decoder& self, const std::string& name, int64_t layer, Matrix<const uint8_t> rows,
                      const std::string& type) {
        const StoredRows stored = stored_rows(type, rows.data(), rows.shape(0), rows.shape(1));
        nb::gil_scoped_release release;  // others read the next one meanwhile, and a server is imported
        self.load(name, layer, stored);
      }, "name"_a, "layer"_a, "rows"_a, "type"_a)
      .def("load_blocks", [](Decoder& self, const std::string& name, int64_t layer, Matrix<const uint8_t> rows,
                             const std::string& type) {
        const StoredRows stored = stored_rows(type, rows.data(), rows.shape(0), rows.shape(1));
        nb::gil_scoped_release release;
        self.load_blocks(name, layer, stored);
      }, "name"_a, "layer"_a, "rows"_a, "type"_a)
      .def("check_complete", &Decoder::check_complete)
      .def("kv_layer", &kv_layer, "layer"_a)
      .def("step", &decoder_step, nb::kw_only(), "token_ids"_a, "positions"_a, "slots"_a, "qo_indptr"_a,
           "kv_indptr"_a, "kv_indices"_a, "seq_lens"_a, "logit_rows"_a, "logits"_a.noconvert());
}

}  // namespace headstart
