#include "kernel_table.h"

#include <stdexcept>
#include <string>

namespace headstart {

namespace scalar {
extern const KernelTable kTable;
}
#if defined(__x86_64__)
namespace avx2 {
extern const KernelTable kTable;
}
namespace avx512 {
extern const KernelTable kTable;
}
namespace avx512_bf16 {
extern const KernelTable kTable;
}
#endif

const KernelTable& kernel_table(Isa isa) {
  if (!machine_has(isa)) {
    throw std::invalid_argument(std::string("isa: this machine has no ") + isa_name(isa) + "; its best is " +
                                isa_name(best_isa()));
  }
#if defined(__x86_64__)
  switch (isa) {
    case Isa::avx2: return avx2::kTable;
    case Isa::avx512: return avx512::kTable;
    case Isa::avx512_bf16: return avx512_bf16::kTable;
    case Isa::scalar: break;
  }
#endif
  return scalar::kTable;
}

const KernelTable& kernel_table() { return kernel_table(active_isa()); }

}  // namespace headstart
