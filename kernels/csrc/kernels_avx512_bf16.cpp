#if defined(__AVX512BF16__)
#define HEADSTART_ISA_NAMESPACE avx512_bf16
#include "table_impl.h"

namespace headstart {
namespace avx512_bf16 {

extern const KernelTable kTable;
const KernelTable kTable = make_table(Isa::avx512_bf16);

}  // namespace avx512_bf16
}  // namespace headstart
#endif
