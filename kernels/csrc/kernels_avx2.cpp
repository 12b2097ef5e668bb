#if defined(__AVX2__)
#define HEADSTART_ISA_NAMESPACE avx2
#include "table_impl.h"

namespace headstart {
namespace avx2 {

extern const KernelTable kTable;
const KernelTable kTable = make_table(Isa::avx2);

}  // namespace avx2
}  // namespace headstart
#endif
