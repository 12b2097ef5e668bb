#include "crew.h"

namespace headstart {
namespace {

void grow(MappedMemory& memory, int64_t num_floats) {
  const size_t num_bytes = static_cast<size_t>(num_floats) * sizeof(float);
  if (num_bytes > memory.num_bytes()) memory = MappedMemory(num_bytes);
}

}  // namespace

void Crew::reserve(int64_t num_lines, int64_t input_width, int64_t product_width) {
  grow(inputs_, num_lines * input_width);
  grow(products_, num_lines * product_width);
}

void Crew::multiply(int64_t num_lines, const Product& product) {
  multiply(num_lines, inputs_.data(), quantised_, product);
}

void Crew::multiply(int64_t num_lines, const void* x, const Product& product) {
  multiply(num_lines, x, {}, product);
}

void Crew::multiply(int64_t num_lines, const void* x, const QuantisedX& quantised, const Product& product) {
  GemmCall call;
  call.weight = &product.weight;
  call.x = x;
  call.m = num_lines;
  call.ldx = product.weight.k;
  call.y = product.y;
  call.ldy = product.weight.n;
  call.bias = product.bias.empty() ? nullptr : product.bias.data();
  call.adds = product.adds;
  call.next = product.next;
  call.quantised = quantised;
  gemm_with(table_, pool_, call);
}

}  // namespace headstart
