// The page table of a step (headstart_kernels/metadata.py), built in one call: dozens of small numpy calls on cold caches
// cost a decode step more than its sampling.
#include "bindings.h"

#include <nanobind/stl/vector.h>

#include <utility>
#include <vector>

namespace headstart {
namespace {

constexpr int64_t kNoSlot = -1;

template <typename T>
nb::object owned(std::vector<T> values) {
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(kept->data(), {kept->size()}, owner));
}

// As the Python function of this name; all lists have one entry a row.
nb::tuple build_metadata(const std::vector<int32_t>& starts, const std::vector<int32_t>& num_tokens,
                         Matrix<const int32_t> block_tables, const std::vector<int32_t>& table_rows,
                         const std::vector<bool>& read_only, int32_t page_size) {
  const size_t rows = starts.size();
  require(num_tokens.size() == rows, "num_tokens: must have one entry a row");
  require(table_rows.size() == rows, "table_rows: must have one entry a row");
  require(read_only.size() == rows, "read_only: must have one entry a row");
  require(page_size >= 1, "page_size: must be at least 1");
  const int64_t width = block_tables.shape(1);
  std::vector<int32_t> qo_indptr{0}, kv_indptr{0}, kv_indices, last_page_len, seq_lens, positions;
  std::vector<int64_t> slots;
  for (size_t row = 0; row < rows; ++row) {
    const int64_t start = starts[row], count = num_tokens[row], length = start + count, line = table_rows[row];
    require(start >= 0 && count >= 0, "num_tokens: starts and counts must not be negative");
    require(line >= 0 && line < static_cast<int64_t>(block_tables.shape(0)), "table_rows: there is no such line");
    const int64_t num_pages = (length + page_size - 1) / page_size;
    require(num_pages <= width, "block_tables: " + std::to_string(width) + " pages a line, a row needs " +
                                    std::to_string(num_pages));
    const int32_t* pages = block_tables.data() + line * width;
    kv_indices.insert(kv_indices.end(), pages, pages + num_pages);
    for (int64_t position = start; position < length; ++position) {
      positions.push_back(static_cast<int32_t>(position));
      const int64_t slot = int64_t{pages[position / page_size]} * page_size + position % page_size;
      slots.push_back(read_only[row] ? kNoSlot : slot);
    }
    qo_indptr.push_back(static_cast<int32_t>(positions.size()));
    kv_indptr.push_back(static_cast<int32_t>(kv_indices.size()));
    last_page_len.push_back(static_cast<int32_t>(num_pages > 0 ? length - (num_pages - 1) * page_size : 1));
    seq_lens.push_back(static_cast<int32_t>(length));
  }
  return nb::make_tuple(owned(std::move(qo_indptr)), owned(std::move(kv_indptr)), owned(std::move(kv_indices)),
                        owned(std::move(last_page_len)), owned(std::move(seq_lens)), owned(std::move(positions)),
                        owned(std::move(slots)));
}

}  // namespace

void bind_metadata(nb::module_& m) {
  m.def("build_metadata", &build_metadata, "starts"_a, "num_tokens"_a, "block_tables"_a, "table_rows"_a, "read_only"_a,
        "page_size"_a);
}

}  // namespace headstart
