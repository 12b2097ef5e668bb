#include "usable_cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <thread>

namespace headstart {
namespace {

int allowed_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

// Cores' worth of time in each period; 0 without a limit, which is "max" in the second version and -1 in the first.
double granted_cores(const std::string& cgroup) {
  double quota = 0, period = 0;
  std::ifstream second(cgroup + "/cpu.max");
  if (second) {
    if (!(second >> quota >> period)) return 0;
  } else {
    std::ifstream(cgroup + "/cpu/cpu.cfs_quota_us") >> quota;
    std::ifstream(cgroup + "/cpu/cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

}  // namespace

int usable_cores(const std::string& cgroup) {
  const int allowed = allowed_cores();
  const double granted = granted_cores(cgroup);
  return granted > 0 && granted < allowed ? static_cast<int>(std::ceil(granted)) : allowed;
}

}  // namespace headstart
