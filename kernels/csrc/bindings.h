// What the parts of the Python module share. Each part checks shapes and types, releases the lock, calls.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "isa.h"
#include "kernel_table.h"
#include "packed_weight.h"

namespace headstart {

namespace nb = nanobind;
using namespace nb::literals;

template <typename T>
using Matrix = nb::ndarray<T, nb::numpy, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Vector = nb::ndarray<T, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// std::invalid_argument becomes ValueError.
inline void require(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

// The table of the set named, or of the active one for "".
inline const KernelTable& table_of(const std::string& isa) {
  return isa.empty() ? kernel_table() : kernel_table(isa_from_name(isa));
}

inline PackedWeight::Type weight_type(const std::string& name) {
  if (name == "f32") return PackedWeight::Type::f32;
  if (name == "bf16") return PackedWeight::Type::bf16;
  if (name == "q8_0") return PackedWeight::Type::q8_0;
  if (name == "q4_1") return PackedWeight::Type::q4_1;
  throw std::invalid_argument("type: must be f32, bf16, q8_0 or q4_1, is '" + name + "'");
}

void bind_decoder(nb::module_& m);
void bind_metadata(nb::module_& m);

}  // namespace headstart
