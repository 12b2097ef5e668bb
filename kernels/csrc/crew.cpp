#include "crew.h"

#include <algorithm>

namespace headstart {
namespace {

// Doubles at least: batches that grow row by row must not take new memory with every row.
void grow(MappedMemory& memory, int64_t num_floats) {
  const size_t num_bytes = static_cast<size_t>(num_floats) * sizeof(float);
  if (num_bytes > memory.num_bytes()) memory = MappedMemory(std::max(num_bytes, 2 * memory.num_bytes()));
}

}  // namespace

void Crew::reserve(int64_t num_lines, int64_t input_width, int64_t product_width) {
  grow(inputs_, num_lines * input_width);
  grow(products_, num_lines * product_width);
  if (!table_.has_bf16_dot) grow(widened_, num_lines * input_width);
  quantised_memory_.take(num_lines, (input_width + kQuantBlock - 1) / kQuantBlock * kQuantBlock);
}

void Crew::multiply_from(int64_t num_lines, const void* x, const Product& product) {
  const int64_t k = product.weight.k;
  quantised_ = product.weight.is_quantised() ? quantised_memory_.take(num_lines, k) : QuantisedX{};
  if (product.weight.is_quantised()) {
    const float* lines = static_cast<const float*>(x);
    for_lines(num_lines, [&](int64_t line) { table_.quantise_row(lines + line * k, quantised_, line); });
  }
  multiply(num_lines, x, product);
}

void Crew::multiply(int64_t num_lines, const void* x, const Product& product) {
  GemmCall call;
  call.weight = &product.weight;
  call.x = x;
  call.m = num_lines;
  call.ldx = product.weight.k;
  call.y = product.y;
  call.ldy = product.weight.n;
  call.bias = product.bias;
  call.adds = product.adds;
  call.widened = reinterpret_cast<float*>(widened_.data());
  call.next = product.next;
  call.quantised = quantised_;
  gemm_with(table_, pool_, call);
}

}  // namespace headstart
