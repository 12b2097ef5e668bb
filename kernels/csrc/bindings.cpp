// The Python module headstart_kernels._native. Checks shapes and types, releases the lock, calls.
// Each part of the kernels adds its own bind_* function; std::invalid_argument becomes ValueError.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <nanobind/stl/optional.h>
#include <stdexcept>
#include <string>

#include "gemm.h"
#include "isa.h"
#include "kernel_table.h"
#include "packed_weight.h"
#include "thread_pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace headstart {
namespace {

template <typename T>
using Matrix = nb::ndarray<T, nb::numpy, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Vector = nb::ndarray<T, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void require(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

// The table of the set named, or of the active one for "".
const KernelTable& table_of(const std::string& isa) {
  return isa.empty() ? kernel_table() : kernel_table(isa_from_name(isa));
}

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

// ---- linear layers

PackedWeight::Type weight_type(const std::string& name) {
  if (name == "f32") return PackedWeight::Type::f32;
  if (name == "bf16") return PackedWeight::Type::bf16;
  throw std::invalid_argument("type: must be f32 or bf16, is '" + name + "'");
}

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
               std::optional<Vector<const float>> bias, const std::string& isa) {
  const int64_t m = x.shape(0);
  require(static_cast<int64_t>(x.shape(1)) == w.k, "x: must have " + std::to_string(w.k) + " columns");
  require(static_cast<int64_t>(y.shape(0)) == m, "y: must have as many rows as x");
  require(static_cast<int64_t>(y.shape(1)) == w.n, "y: must have " + std::to_string(w.n) + " columns");
  require(!bias || static_cast<int64_t>(bias->shape(0)) == w.n, "bias: must have " + std::to_string(w.n) + " entries");
  require((w.type == PackedWeight::Type::f32) == std::is_same_v<X, float>,
          "x: must be float32 for f32 weights, else bf16 as uint16");
  const KernelTable& table = table_of(isa);
  GemmCall call;
  call.weight = &w;
  call.x = x.data();
  call.m = m;
  call.ldx = w.k;
  call.y = y.data();
  call.ldy = w.n;
  call.bias = bias ? bias->data() : nullptr;
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
  m.def("pack", [](HugeArena& arena, Matrix<const float> w, const std::string& type) {
    return pack_f32(arena, w.data(), w.shape(0), w.shape(1), weight_type(type));
  }, "arena"_a, "w"_a, "type"_a);
  m.def("pack", [](HugeArena& arena, Matrix<const uint16_t> w) {
    return pack_bf16(arena, w.data(), w.shape(0), w.shape(1));
  }, "arena"_a, "w"_a);
  m.def("gemm", &call_gemm<float>, "pool"_a, "w"_a, "x"_a, "y"_a, "bias"_a.none() = nb::none(), "isa"_a = "");
  m.def("gemm", &call_gemm<uint16_t>, "pool"_a, "w"_a, "x"_a, "y"_a, "bias"_a.none() = nb::none(), "isa"_a = "");
}

}  // namespace
}  // namespace headstart

NB_MODULE(_native, m) {
  headstart::bind_machine(m);
  headstart::bind_gemm(m);
}
