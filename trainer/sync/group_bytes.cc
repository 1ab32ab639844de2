#include "trainer/sync/group_bytes.h"

#include <algorithm>
#include <cstring>

namespace keel::trainer {

std::vector<std::string> AllGatherBytes(parallel::ProcessGroup& group, std::string_view mine,
                                        at::Device device) {
  const int64_t ranks = group.size();
  if (ranks == 1) return {std::string(mine)};
  // 1. How long they are.
  const at::Tensor length = at::full({1}, static_cast<int64_t>(mine.size()), at::kLong).to(device);
  at::Tensor lengths = at::empty({ranks}, length.options());
  group.AllGather(lengths, length);
  lengths = lengths.cpu();
  const int64_t* sizes = lengths.const_data_ptr<int64_t>();
  const int64_t most = *std::max_element(sizes, sizes + ranks);
  // 2. Each padded to the longest.
  at::Tensor padded = at::zeros({std::max<int64_t>(1, most)}, at::kByte);
  if (!mine.empty()) std::memcpy(padded.data_ptr(), mine.data(), mine.size());
  padded = padded.to(device);
  at::Tensor all = at::empty({ranks * padded.numel()}, padded.options());
  group.AllGather(all, padded);
  all = all.cpu();
  std::vector<std::string> texts;
  for (int64_t r = 0; r < ranks; ++r) {
    texts.emplace_back(reinterpret_cast<const char*>(all.const_data_ptr()) + r * padded.numel(),
                       static_cast<size_t>(sizes[r]));
  }
  return texts;
}

}  // namespace keel::trainer
