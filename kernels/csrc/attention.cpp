#include "attention.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernel_table.h"

namespace headstart {
namespace {

// Below this many (token, head, chunk) states waking a thread costs more than it saves.
constexpr int64_t kStatesWorthThreads = 512;

void require(bool holds, const char* argument, const std::string& reason) {
  if (!holds) throw std::invalid_argument(std::string(argument) + ": " + reason);
}

void check_call(const AttentionCall& call) {
  const KvLayer& kv = call.kv;
  require(kv.head_dim > 0 && kv.head_dim % 8 == 0 && kv.head_dim <= kMaxHeadDim, "head_dim",
          "must be a multiple of 8 up to " + std::to_string(kMaxHeadDim) + ", is " + std::to_string(kv.head_dim));
  require(kv.num_kv_heads > 0 && call.num_heads % kv.num_kv_heads == 0 && call.num_heads > 0, "num_heads",
          "must be a multiple of num_kv_heads");
  require(call.ldq >= call.num_heads * kv.head_dim, "ldq", "must hold all heads");
  require(call.ldo >= call.num_heads * kv.head_dim, "ldo", "must hold all heads");
}

}  // namespace

void AttentionScratch::reserve(const AttentionPlan& plan, const AttentionCall& call, int num_threads) {
  const int64_t queries = plan.max_unit_tokens * (call.num_heads / call.kv.num_kv_heads);
  const int64_t floats = (thread_layout(queries, plan.max_unit_heads, call.kv.head_dim).size + 1023) / 1024 * 1024;
  const size_t thread_bytes = static_cast<size_t>(floats * num_threads) * sizeof(float);
  if (floats > thread_floats_ || thread_bytes > threads_.num_bytes()) {
    threads_ = MappedMemory(thread_bytes);
    thread_floats_ = floats;
  }
  const size_t state_bytes =
      static_cast<size_t>(plan.num_states * call.num_heads * state_floats(call.kv.head_dim)) * sizeof(float);
  if (state_bytes > states_.num_bytes()) states_ = MappedMemory(state_bytes + state_bytes / 2);
}

AttentionBuffers AttentionScratch::of_thread(int thread) const {
  return {reinterpret_cast<float*>(threads_.data()) + thread * thread_floats_,
          reinterpret_cast<float*>(states_.data())};
}

void attend(ThreadPool& pool, const KernelTable& kernels, const AttentionPlan& plan, AttentionScratch& scratch,
            const AttentionCall& call) {
  check_call(call);
  scratch.reserve(plan, call, pool.size());
  const int64_t num_kv_heads = call.kv.num_kv_heads;
  int64_t begin = 0;
  for (const int64_t end : plan.stage_ends) {
    pool.run(end - begin, [&](int64_t task, int thread) {
      const AttentionUnit* unit = plan.units.data() + begin + task;
      const bool has_next = begin + task + pool.size() < end;
      kernels.attend_unit(call, *unit, plan.spans.data(), has_next ? unit + pool.size() : nullptr,
                          scratch.of_thread(thread));
    });
    begin = end;
  }
  const auto merge = [&](int64_t task, int thread) {
    const int64_t span = plan.merged_spans[static_cast<size_t>(task / num_kv_heads)];
    kernels.merge_states(call, plan.spans[static_cast<size_t>(span)], task % num_kv_heads, scratch.of_thread(thread));
  };
  const int64_t num_merges = static_cast<int64_t>(plan.merged_spans.size()) * num_kv_heads;
  if (plan.num_states * call.num_heads >= kStatesWorthThreads) {
    pool.run(num_merges, merge);
  } else {
    for (int64_t task = 0; task < num_merges; ++task) merge(task, 0);
  }
}

}  // namespace headstart
