// How many cores this process may keep busy.
#pragma once

#include <string>

namespace headstart {

// The cores that the process may run on, or as many as its cgroup grants time for, rounded up, if those are fewer:
// threads beyond that only use the time up earlier, and then all of them stand still. `cgroup` is where the system
// shows the cgroup of the process, of either version.
int usable_cores(const std::string& cgroup = "/sys/fs/cgroup");

}  // namespace headstart
