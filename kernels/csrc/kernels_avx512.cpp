#if defined(__AVX512F__)
#define HEADSTART_ISA_NAMESPACE avx512
#include "table_impl.h"

namespace headstart {
namespace avx512 {

extern const KernelTable kTable;
const KernelTable kTable = make_table(Isa::avx512);

}  // namespace avx512
}  // namespace headstart
#endif
