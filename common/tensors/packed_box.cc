#include "common/tensors/packed_box.h"

#include <algorithm>
#include <vector>

namespace keel {

Status ForEachPacked(
    const Box& box, const Box& view_box, const StridedView& view, int64_t element_size,
    int64_t at_once,
    const std::function<Status(const Box& part, std::span<const std::byte>)>& visit) {
  if (box.empty()) return Status::Ok();
  // The dim that is cut: outside it a part has one step of each dim, within it all of them.
  int cut = box.dims() - 1;
  int64_t inner = element_size;
  while (cut > 0 && inner * box.size[cut] <= at_once) inner *= box.size[cut--];
  const int64_t most = std::max<int64_t>(1, at_once / inner);
  std::vector<std::byte> packed(static_cast<size_t>(std::min(most, box.size[cut]) * inner));
  Box part = box;
  for (int d = 0; d < cut; ++d) part.size[d] = 1;
  for (;;) {
    for (int64_t step = 0; step < box.size[cut]; step += most) {
      part.offset[cut] = box.offset[cut] + step;
      part.size[cut] = std::min(most, box.size[cut] - step);
      CopyBox(part, view_box, view, part, {packed.data(), ContiguousStrides(part.size)},
              element_size);
      KEEL_RETURN_IF_ERROR(
          visit(part, std::span(packed).first(static_cast<size_t>(part.size[cut] * inner))));
    }
    int d = cut - 1;
    while (d >= 0 && ++part.offset[d] == box.offset[d] + box.size[d]) {
      part.offset[d] = box.offset[d];
      --d;
    }
    if (d < 0) return Status::Ok();
  }
}

}  // namespace keel
