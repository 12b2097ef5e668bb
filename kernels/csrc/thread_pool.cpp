#include "thread_pool.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "usable_cores.h"

namespace headstart {

namespace {

constexpr int kMaxThreads = 1024;
constexpr int64_t kMaxTasks = UINT32_MAX;
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr int kPausesBetweenClockReads = 32;
constexpr int kPausesBeforeYield = 2000;

void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

int default_num_threads() {
  const char* text = std::getenv("HEADSTART_THREADS");
  if (text == nullptr || *text == '\0') return std::min(usable_cores(), kMaxThreads);
  char* end = nullptr;
  const long count = std::strtol(text, &end, 10);
  if (*end != '\0' || count < 1 || count > kMaxThreads) {
    throw std::invalid_argument(std::string("HEADSTART_THREADS: must be a number in [1, 1024], is '") + text + "'");
  }
  return static_cast<int>(count);
}

ThreadPool::ThreadPool(int num_threads) {
  if (num_threads < 0 || num_threads > kMaxThreads) {
    throw std::invalid_argument("num_threads: must lie in [0, 1024], is " + std::to_string(num_threads));
  }
  const int count = num_threads == 0 ? default_num_threads() : num_threads;
  for (int thread = 1; thread < count; ++thread) {
    workers_.emplace_back([this, thread] { work(thread); });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(park_mutex_);
    stopping_ = true;
  }
  unpark_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

bool ThreadPool::has_work() const {
  const uint64_t ticket = ticket_.load();
  return static_cast<uint32_t>(ticket) < (ticket >> 32);
}

bool ThreadPool::claim(int64_t* task) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(ticket) < (ticket >> 32)) {
    if (ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
      *task = static_cast<uint32_t>(ticket);
      return true;
    }
  }
  return false;
}

void ThreadPool::run_erased(int64_t num_tasks, TaskFn fn, void* callable) {
  if (num_tasks <= 0) return;
  if (num_tasks > kMaxTasks) throw std::invalid_argument("num_tasks: more than 2^32 - 1");
  std::lock_guard<std::mutex> lock(run_mutex_);
  if (num_tasks == 1 || workers_.empty()) {
    for (int64_t task = 0; task < num_tasks; ++task) fn(callable, task, 0);
    return;
  }
  fn_ = fn;
  callable_ = callable;
  num_done_.store(0, std::memory_order_relaxed);
  // Sequentially consistent, like num_parked_: either a worker about to park sees the work or we see it parked.
  ticket_.store(static_cast<uint64_t>(num_tasks) << 32);
  if (num_parked_.load() > 0) {
    std::lock_guard<std::mutex> park_lock(park_mutex_);
    unpark_.notify_all();
  }
  int64_t task;
  while (claim(&task)) {
    fn(callable, task, 0);
    num_done_.fetch_add(1, std::memory_order_release);
  }
  for (int pauses = 0; num_done_.load(std::memory_order_acquire) < num_tasks; ++pauses) {
    // A worker that the system took off its core cannot finish while we spin on the only other one.
    if (pauses < kPausesBeforeYield) {
      pause_core();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::work(int thread) {
  while (wait_for_work()) {
    int64_t task;
    while (claim(&task)) {
      fn_(callable_, task, thread);
      num_done_.fetch_add(1, std::memory_order_release);
    }
  }
}

// False when the pool is being destroyed.
bool ThreadPool::wait_for_work() {
  const auto until = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kPausesBetweenClockReads; ++i) {
      if (has_work()) return true;
      pause_core();
    }
  } while (std::chrono::steady_clock::now() < until);
  std::unique_lock<std::mutex> lock(park_mutex_);
  num_parked_.fetch_add(1);
  unpark_.wait(lock, [this] { return stopping_ || has_work(); });
  num_parked_.fetch_sub(1);
  return !stopping_;
}

}  // namespace headstart
