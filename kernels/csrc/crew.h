// One or several threads that take some lines, one a token, from norm to product to the next: their pool, and the memory
// between one step of that and the next. What a crew of one works on stays near its core.
// Knows nothing of layers. One thread calls it at a time. After `reserve` nothing here takes memory: a crew of one works
// within a task of another pool, which must not throw.
#pragma once

#include <cstdint>
#include <vector>

#include "gemm.h"
#include "kernel_table.h"
#include "mapped_memory.h"
#include "packed_weight.h"
#include "thread_pool.h"

namespace headstart {

class Crew {
 public:
  // num_threads as ThreadPool takes it.
  Crew(const KernelTable& table, int num_threads) : table_(table), pool_(num_threads) {}

  ThreadPool& pool() { return pool_; }
  const ThreadPool& pool() const { return pool_; }

  // Room for num_lines inputs of up to input_width numbers, and as many products of product_width. It only grows.
  void reserve(int64_t num_lines, int64_t input_width, int64_t product_width);

  // fn(line) for each of [0, num_lines).
  template <typename Fn>
  void for_lines(int64_t num_lines, Fn fn) {
    const int64_t tasks = (num_lines + kLinesPerTask - 1) / kLinesPerTask;
    pool_.run(tasks, [&](int64_t task, int) {
      const int64_t end = num_lines < (task + 1) * kLinesPerTask ? num_lines : (task + 1) * kLinesPerTask;
      for (int64_t line = task * kLinesPerTask; line < end; ++line) fn(line);
    });
  }

  // The inputs of a product with `taker`: fn(line, to, is_bf16) writes the taker.k numbers of each line.
  template <typename Fn>
  void make_inputs(int64_t num_lines, const PackedWeight& taker, Fn fn) {
    const bool is_bf16 = taker.takes_bf16();
    quantised_ = taker.is_quantised() ? quantised_memory_.take(num_lines, taker.k) : QuantisedX{};
    for_lines(num_lines, [&](int64_t line) {
      uint8_t* to = inputs_.data() + line * taker.k * (is_bf16 ? 2 : 4);
      fn(line, static_cast<void*>(to), is_bf16);
      if (taker.is_quantised()) table_.quantise_row(reinterpret_cast<const float*>(to), quantised_, line);
    });
  }

  struct Product {
    const PackedWeight& weight;
    float* y;                    // [lines][weight.n]
    const PackedWeight* next;    // of the product after this one
    const float* bias = nullptr; // [weight.n] or null
    bool adds = false;           // to what y holds
  };

  // Of what make_inputs made last.
  void multiply(int64_t num_lines, const Product& product) { multiply(num_lines, inputs_.data(), product); }
  // Of x [num_lines][weight.k], in the type that the weight takes; make_inputs made none for it.
  void multiply_from(int64_t num_lines, const void* x, const Product& product);

  // Memory for products that nobody else reads.
  float* products() const { return reinterpret_cast<float*>(products_.data()); }

 private:
  // Enough that handing a task out costs nothing beside it.
  static constexpr int64_t kLinesPerTask = 8;

  void multiply(int64_t num_lines, const void* x, const Product& product);

  const KernelTable& table_;
  ThreadPool pool_;
  MappedMemory inputs_, products_, widened_;
  QuantisedBuffer quantised_memory_;
  QuantisedX quantised_;
};

}  // namespace headstart
