#define HEADSTART_ISA_NAMESPACE scalar
#include "table_impl.h"

namespace headstart {
namespace scalar {

extern const KernelTable kTable;
const KernelTable kTable = make_table(Isa::scalar);

}  // namespace scalar
}  // namespace headstart
