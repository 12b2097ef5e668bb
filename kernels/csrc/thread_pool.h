// Threads that share out the tasks of one call at a time, the caller among them.
// Knows nothing of what a task does. A task's result must depend on its number alone, never on the thread.
// Between calls workers spin for about 50 us, so that a forward pass finds them awake, then they park.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace headstart {

// HEADSTART_THREADS when it is set, else usable_cores(). Throws std::invalid_argument.
int default_num_threads();

class ThreadPool {
 public:
  // num_threads counts the caller; 0 means default_num_threads(). Throws std::invalid_argument outside [0, 1024].
  explicit ThreadPool(int num_threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls fn(int64_t task, int thread) once for each task in [0, num_tasks), thread in [0, size()), and returns when
  // all are done. fn must not throw and must not call run of this pool. Callers from several threads wait for each other.
  template <typename Fn>
  void run(int64_t num_tasks, Fn&& fn) {
    using Callable = std::remove_reference_t<Fn>;
    run_erased(num_tasks, [](void* callable, int64_t task, int thread) {
      (*static_cast<Callable*>(callable))(task, thread);
    }, const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  using TaskFn = void (*)(void* callable, int64_t task, int thread);

  void run_erased(int64_t num_tasks, TaskFn fn, void* callable);
  void work(int thread);
  bool claim(int64_t* task);
  bool wait_for_work();
  bool has_work() const;

  std::mutex run_mutex_;  // held for the whole of a run: one job at a time
  // Number of tasks << 32 | the next task to claim. A claim is one compare-and-swap of this word; the fields below
  // belong to the job whose word it is, and stay valid for as long as a claimed task of it is not done.
  std::atomic<uint64_t> ticket_{0};
  TaskFn fn_ = nullptr;
  void* callable_ = nullptr;
  std::atomic<int64_t> num_done_{0};

  std::mutex park_mutex_;
  std::condition_variable unpark_;
  std::atomic<int> num_parked_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> workers_;
};

}  // namespace headstart
