// The Python module headstart_kernels._native. Checks shapes and types, releases the lock, calls.
// Each part of the kernels adds its own bind_* function; std::invalid_argument becomes ValueError.
#include "bindings.h"

#include <nanobind/stl/vector.h>

#include <optional>
#include <nanobind/stl/optional.h>
#include <algorithm>
#include <stdexcept>
#include <string>
#include <tuple>

#include "attention.h"
#include "gemm.h"
#include "isa.h"
#include "kernel_table.h"
#include "packed_weight.h"
#include "thread_pool.h"
#include "usable_cores.h"

namespace headstart {
namespace {

// ---- instruction sets and threads

void bind_machine(nb::module_& m) {
  m.def("active_isa", [] { return std::string(isa_name(active_isa())); });
  m.def("available_isas", [] {
    std::vector<std::string> names;
    for (Isa isa : kAllIsas) {
      if (machine_has(isa)) names.push_back(isa_name(isa));
    }
    return names;
  });
  m.def("usable_cores", &usable_cores, "cgroup"_a);  // for tests
  nb::class_<ThreadPool>(m, "ThreadPool")
      .def(nb::init<int>(), "num_threads"_a = 0)
      .def_prop_ro("size", &ThreadPool::size)
      .def("count_tasks", [](ThreadPool& pool, int64_t num_tasks) {
        // How often each task ran, for the tests of the pool.
        require(num_tasks >= 0 && num_tasks <= (1 << 24), "num_tasks: must lie in [0, 2^24]");
        std::vector<int> counts(num_tasks);
        {
          nb::gil_scoped_release release;
          pool.run(num_tasks, [&](int64_t task, int) { ++counts[task]; });
        }
        return counts;
      }, "num_tasks"_a);
}

// ---- limits of the hardware

void bind_limits(nb::module_& m) {
  m.def("read_memory", [](ThreadPool& pool, Vector<const uint8_t> memory, const std::string& isa) {
    const KernelTable& table = table_of(isa);
    const int64_t share = static_cast<int64_t>(memory.shape(0)) / pool.size() / 1024 * 1024;
    std::vector<float> sums(pool.size());
    const uint8_t* bytes = memory.data();
    nb::gil_scoped_release release;
    pool.run(pool.size(), [&](int64_t task, int) { sums[task] = table.read_memory(bytes + task * share, share); });
    return share * pool.size();
  }, "pool"_a, "memory"_a, "isa"_a = "", "Read the memory once, shared out over the threads; gives the bytes read.");
  m.def("multiply_registers", [](ThreadPool& pool, int64_t num_rounds, const std::string& isa) {
    const KernelTable& table = table_of(isa);
    std::vector<float> results(pool.size());
    std::vector<int64_t> counts(pool.size());
    nb::gil_scoped_release release;
    pool.run(pool.size(), [&](int64_t task, int) {
      counts[task] = table.multiply_registers(num_rounds, &results[task]);
    });
    int64_t total = 0;
    for (int64_t count : counts) total += count;
    return total;
  }, "pool"_a, "num_rounds"_a, "isa"_a = "", "Multiply and add in registers on all threads; gives the operations.");
}

// ---- linear layers

const char* weight_type_name(PackedWeight::Type type) {
  switch (type) {
    case PackedWeight::Type::f32: return "f32";
    case PackedWeight::Type::bf16: return "bf16";
    case PackedWeight::Type::q8_0: return "q8_0";
    case PackedWeight::Type::q4_1: return "q4_1";
  }
  return "unknown";
}

template <typename X>
void call_gemm(ThreadPool& pool, const PackedWeight& w, Matrix<const X> x, Matrix<float> y,
               std::optional<Vector<const float>> bias, const PackedWeight* next, bool adds, const std::string& isa) {
  const int64_t m = x.shape(0);
  require(static_cast<int64_t>(x.shape(1)) == w.k, "x: must have " + std::to_string(w.k) + " columns");
  require(static_cast<int64_t>(y.shape(0)) == m, "y: must have as many rows as x");
  require(static_cast<int64_t>(y.shape(1)) == w.n, "y: must have " + std::to_string(w.n) + " columns");
  require(!bias || static_cast<int64_t>(bias->shape(0)) == w.n, "bias: must have " + std::to_string(w.n) + " entries");
  require(w.takes_bf16() == std::is_same_v<X, uint16_t>, "x: must be bf16 as uint16 for bf16 weights, else float32");
  const KernelTable& table = table_of(isa);
  GemmCall call;
  call.weight = &w;
  call.x = x.data();
  call.m = m;
  call.ldx = w.k;
  call.y = y.data();
  call.ldy = w.n;
  call.bias = bias ? bias->data() : nullptr;
  call.adds = adds;
  call.next = next;
  nb::gil_scoped_release release;
  gemm_with(table, pool, call);
}

void bind_gemm(nb::module_& m) {
  nb::class_<HugeArena>(m, "HugeArena").def(nb::init<>());
  nb::class_<PackedWeight>(m, "PackedWeight")
      .def_ro("n", &PackedWeight::n)
      .def_ro("k", &PackedWeight::k)
      .def_prop_ro("num_bytes", &PackedWeight::num_bytes)
      .def_prop_ro("type", [](const PackedWeight& w) { return std::string(weight_type_name(w.type)); });
  m.def("pack", [](HugeArena& arena, Matrix<const uint8_t> rows, const std::string& stored, const std::string& type) {
    return pack_rows(arena, stored_rows(stored, rows.data(), rows.shape(0), rows.shape(1)), weight_type(type));
  }, "arena"_a, "rows"_a, "stored"_a, "type"_a);
  m.def("pack_blocks", [](HugeArena& arena, Matrix<const uint8_t> rows, const std::string& stored) {
    return pack_blocks(arena, stored_rows(stored, rows.data(), rows.shape(0), rows.shape(1)));
  }, "arena"_a, "rows"_a, "stored"_a);
  m.def("gemm", &call_gemm<float>, "pool"_a, "w"_a, "x"_a, "y"_a, "bias"_a.none() = nb::none(),
        "next"_a.none() = nb::none(), "adds"_a = false, "isa"_a = "");
  m.def("gemm", &call_gemm<uint16_t>, "pool"_a, "w"_a, "x"_a, "y"_a, "bias"_a.none() = nb::none(),
        "next"_a.none() = nb::none(), "adds"_a = false, "isa"_a = "");
}

// ---- attention and what is done to one row; bf16 arrays are uint16

template <typename T>
using Storage = nb::ndarray<T, nb::numpy, nb::ndim<5>, nb::c_contig, nb::device::cpu>;
using IntVector = Vector<const int32_t>;

// A plan with the page table that it points into and the scratch that its layers share.
struct OwnedPlan {
  AttentionScratch scratch;
  std::vector<int32_t> kv_indices;
  AttentionPlan plan;
  int64_t num_tokens = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t page_size = 0;
  int64_t num_pages = 0;  // pages that the storage must have
};

// The arrays must be valid: headstart_kernels.metadata.validate_metadata.
OwnedPlan make_plan(IntVector qo_indptr, IntVector kv_indptr, IntVector kv_indices, IntVector seq_lens,
                    int64_t page_size, const PlanShape& shape) {
  OwnedPlan owned;
  const int64_t rows = static_cast<int64_t>(seq_lens.size());
  require(static_cast<int64_t>(qo_indptr.size()) == rows + 1, "qo_indptr: must have one entry more than seq_lens");
  require(static_cast<int64_t>(kv_indptr.size()) == rows + 1, "kv_indptr: must have one entry more than seq_lens");
  owned.kv_indices.assign(kv_indices.data(), kv_indices.data() + kv_indices.size());
  const PageTable table = {qo_indptr.data(), kv_indptr.data(), owned.kv_indices.data(), seq_lens.data(), rows,
                           page_size};
  check_page_table(table, static_cast<int64_t>(kv_indices.size()));
  owned.plan = plan_attention(table, shape);
  owned.num_tokens = qo_indptr.data()[rows];
  owned.num_heads = shape.num_heads;
  owned.num_kv_heads = shape.num_kv_heads;
  owned.page_size = page_size;
  for (const int32_t page : owned.kv_indices) owned.num_pages = std::max<int64_t>(owned.num_pages, page + 1);
  return owned;
}

// The storage of KvLayer as an array [panels, kv_heads, 2, kPanelSlots, head_dim], whose last two axes are only sizes.
template <typename Kv>
KvLayer kv_layer_of(Storage<Kv>& kv, int64_t page_size) {
  require(kv.shape(2) == 2 && kv.shape(3) == kPanelSlots && kv.shape(4) % 2 == 0,
          "kv: must be [panels, kv_heads, 2, 16, even head_dim]");
  return {kv.data(), sizeof(Kv) == 2, page_size, static_cast<int64_t>(kv.shape(1)), static_cast<int64_t>(kv.shape(4))};
}

template <typename Kv, typename Out>
void call_attention(ThreadPool& pool, OwnedPlan& owned, Matrix<const float> q, Storage<Kv> kv, Matrix<Out> out,
                    double scale, const std::string& isa) {
  const KvLayer layer = kv_layer_of(kv, owned.page_size);
  const int64_t width = owned.num_heads * layer.head_dim;
  require(static_cast<int64_t>(kv.shape(0)) * kPanelSlots >= owned.num_pages * owned.page_size,
          "kv: has fewer slots than the page table names");
  require(layer.num_kv_heads == owned.num_kv_heads, "kv: must have the K/V heads of the plan");
  for (const auto& [name, rows, columns] : {std::tuple("q", q.shape(0), q.shape(1)),
                                            std::tuple("out", out.shape(0), out.shape(1))}) {
    require(static_cast<int64_t>(rows) == owned.num_tokens && static_cast<int64_t>(columns) == width,
            std::string(name) + ": must be [tokens, heads * head_dim]");
  }
  const KernelTable& table = table_of(isa);
  const float exact_scale = static_cast<float>(scale);
  const AttentionCall call = {q.data(), width, layer, owned.num_heads, exact_scale, out.data(), width,
                              sizeof(Out) == 2};
  nb::gil_scoped_release release;
  attend(pool, table, owned.plan, owned.scratch, call);
}

template <typename Kv>
void call_write_kv(Storage<Kv> kv, Matrix<const float> k, Matrix<const float> v, Vector<const int64_t> slots,
                   const std::string& isa) {
  const KvLayer layer = kv_layer_of(kv, kPanelSlots);
  const size_t width = static_cast<size_t>(layer.num_kv_heads * layer.head_dim);
  require(k.shape(0) == slots.size() && k.shape(1) == width, "k: must be [tokens, kv_heads * head_dim]");
  require(v.shape(0) == slots.size() && v.shape(1) == width, "v: must be [tokens, kv_heads * head_dim]");
  const KernelTable& table = table_of(isa);
  for (size_t i = 0; i < slots.size(); ++i) {
    const int64_t slot = slots.data()[i];
    require(slot >= -1 && slot < static_cast<int64_t>(kv.shape(0)) * kPanelSlots, "slots: outside of the storage");
    table.write_kv(layer, k.data() + i * width, v.data() + i * width, slot);
  }
}

template <typename Out>
void call_rms_norm(Matrix<const float> x, Vector<const float> weight, double eps, Matrix<Out> out,
                   const std::string& isa) {
  require(weight.size() == x.shape(1), "weight: must have one entry a column of x");
  require(out.shape(0) == x.shape(0) && out.shape(1) == x.shape(1), "out: must have the shape of x");
  const int64_t count = static_cast<int64_t>(x.shape(1));
  for (size_t i = 0; i < x.shape(0); ++i) {
    table_of(isa).rms_norm(x.data() + i * count, weight.data(), static_cast<float>(eps), count,
                           out.data() + i * count, sizeof(Out) == 2);
  }
}

template <typename Out>
void call_silu_mul(Vector<const float> gate, Vector<const float> up, Vector<Out> out, const std::string& isa) {
  require(up.size() == gate.size(), "up: must be as long as gate");
  require(out.size() == gate.size(), "out: must be as long as gate");
  table_of(isa).silu_mul(gate.data(), up.data(), static_cast<int64_t>(gate.size()), out.data(), sizeof(Out) == 2);
}

void call_rotate(Matrix<float> x, Vector<const float> cos, Vector<const float> sin, const std::string& isa) {
  require(x.shape(1) == 2 * cos.size(), "cos: must have half as many entries as x has columns");
  require(sin.size() == cos.size(), "sin: must be as long as cos");
  table_of(isa).rotate(x.data(), cos.data(), sin.data(), static_cast<int64_t>(x.shape(0)),
                       static_cast<int64_t>(x.shape(1)));
}

// An array argument that is never converted: a kernel would write to the copy.
auto as_is(const char* name) { return nb::arg(name).noconvert(); }

void bind_attention(nb::module_& m) {
  nb::class_<OwnedPlan>(m, "AttentionPlan")
      .def_prop_ro("num_units", [](const OwnedPlan& owned) { return owned.plan.units.size(); })
      .def_prop_ro("num_stages", [](const OwnedPlan& owned) { return owned.plan.stage_ends.size(); })
      .def_prop_ro("num_tile_reads", [](const OwnedPlan& owned) { return count_tile_reads(owned.plan); });
  m.def("plan_attention", [](IntVector qo_indptr, IntVector kv_indptr, IntVector kv_indices, IntVector seq_lens,
                             int64_t page_size, int64_t num_heads, int64_t num_kv_heads, int64_t num_threads,
                             bool shares_prefixes) {
    const PlanShape shape = {num_heads, num_kv_heads, num_threads, shares_prefixes};
    return make_plan(qo_indptr, kv_indptr, kv_indices, seq_lens, page_size, shape);
  }, "qo_indptr"_a, "kv_indptr"_a, "kv_indices"_a, "seq_lens"_a, "page_size"_a, "num_heads"_a, "num_kv_heads"_a,
        "num_threads"_a, "shares_prefixes"_a = true);
  const auto def_attention = [&m](auto function) {
    m.def("attention", function, "pool"_a, "plan"_a, as_is("q"), as_is("kv"), as_is("out"), "scale"_a,
          "isa"_a = "");
  };
  def_attention(&call_attention<float, float>);
  def_attention(&call_attention<uint16_t, float>);
  def_attention(&call_attention<uint16_t, uint16_t>);
  m.def("write_kv", &call_write_kv<float>, as_is("kv"), as_is("k"), as_is("v"), as_is("slots"), "isa"_a = "");
  m.def("write_kv", &call_write_kv<uint16_t>, as_is("kv"), as_is("k"), as_is("v"), as_is("slots"), "isa"_a = "");
  m.def("rms_norm", &call_rms_norm<float>, as_is("x"), as_is("weight"), "eps"_a, as_is("out"), "isa"_a = "");
  m.def("rms_norm", &call_rms_norm<uint16_t>, as_is("x"), as_is("weight"), "eps"_a, as_is("out"), "isa"_a = "");
  m.def("silu_mul", &call_silu_mul<float>, as_is("gate"), as_is("up"), as_is("out"), "isa"_a = "");
  m.def("silu_mul", &call_silu_mul<uint16_t>, as_is("gate"), as_is("up"), as_is("out"), "isa"_a = "");
  m.def("rotate", &call_rotate, as_is("x"), as_is("cos"), as_is("sin"), "isa"_a = "");
}

}  // namespace
}  // namespace headstart

NB_MODULE(_native, m) {
  headstart::bind_machine(m);
  headstart::bind_limits(m);
  headstart::bind_gemm(m);
  headstart::bind_attention(m);
  headstart::bind_decoder(m);
  headstart::bind_metadata(m);
}
