// Takes an array's memory from the system while nobody needs the processor. The first touch of a page has the system
// clear it, which is slower than any kernel here; without this it would fall into the steps that first use a page.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#include "mapped_memory.h"

namespace headstart {

// One thread that works only after `kTurn` without a step, for `kTurn` at a time. Owns the thread, not the memory,
// which must outlive it.
class IdlePopulation {
 public:
  IdlePopulation() = default;
  IdlePopulation(const IdlePopulation&) = delete;
  IdlePopulation& operator=(const IdlePopulation&) = delete;
  ~IdlePopulation() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      is_stopped_ = true;
    }
    wake_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

  void begin_step() { is_stepping_.store(true, std::memory_order_relaxed); }

  // The thread starts at the end of the first step: what comes before belongs to the start of the process.
  void end_step(const MappedMemory& memory) {
    is_stepping_.store(false, std::memory_order_relaxed);
    num_steps_.fetch_add(1, std::memory_order_relaxed);
    if (!thread_.joinable()) thread_ = std::thread([this, &memory] { run(memory); });
  }

 private:
  static constexpr std::chrono::milliseconds kTurn{20};
  static constexpr size_t kPieceBytes = size_t{2} << 20;

  bool is_stepping() const { return is_stepping_.load(std::memory_order_relaxed); }

  void run(const MappedMemory& memory) {
    size_t done = 0;
    int64_t seen = -1;
    while (done < memory.num_bytes()) {
      std::unique_lock<std::mutex> lock(mutex_);
      if (wake_.wait_for(lock, kTurn, [this] { return is_stopped_; })) return;
      lock.unlock();
      const int64_t now = num_steps_.load(std::memory_order_relaxed);
      if (now == seen) done = populate(memory, done);
      seen = now;
    }
  }

  // Where the next turn begins: the end where the system does not know the request (Linux before 5.14).
  size_t populate(const MappedMemory& memory, size_t done) const {
    const auto end = std::chrono::steady_clock::now() + kTurn;
    while (done < memory.num_bytes() && !is_stepping() && std::chrono::steady_clock::now() < end) {
      const size_t size = std::min(kPieceBytes, memory.num_bytes() - done);
      if (madvise(memory.data() + done, size, kPopulateWrite) != 0) return memory.num_bytes();
      done += size;
    }
    return done;
  }

  static constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers do not name

  std::mutex mutex_;
  std::condition_variable wake_;
  bool is_stopped_ = false;
  std::atomic<bool> is_stepping_{false};
  std::atomic<int64_t> num_steps_{0};
  std::thread thread_;
};

}  // namespace headstart
