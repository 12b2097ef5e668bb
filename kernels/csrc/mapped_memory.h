// A large array of zeros that costs memory only where it is written, on huge pages where the system has them.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace headstart {

class MappedMemory {
 public:
  MappedMemory() = default;
  explicit MappedMemory(size_t num_bytes) : num_bytes_(num_bytes) {
    if (num_bytes == 0) return;
    void* place = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED) throw std::bad_alloc();
    madvise(place, num_bytes, MADV_HUGEPAGE);  // a wish: without it everything still works
    data_ = static_cast<uint8_t*>(place);
  }
  ~MappedMemory() {
    if (data_) munmap(data_, num_bytes_);
  }
  MappedMemory(MappedMemory&& other) noexcept { swap(other); }
  MappedMemory& operator=(MappedMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  uint8_t* data() const { return data_; }
  size_t num_bytes() const { return num_bytes_; }

 private:
  void swap(MappedMemory& other) {
    std::swap(data_, other.data_);
    std::swap(num_bytes_, other.num_bytes_);
  }

  uint8_t* data_ = nullptr;
  size_t num_bytes_ = 0;
};

}  // namespace headstart
