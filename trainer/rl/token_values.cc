#include "trainer/rl/token_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "trainer/sync/group_bytes.h"

namespace keel::trainer::rl {

void TokenValues::Add(const RlMicroBatch& micro, const at::Tensor& rows) {
  const at::Tensor host = rows.detach().to(at::kFloat).cpu().contiguous();
  const float* const in = host.const_data_ptr<float>();
  for (const RlMicroBatch::Span& span : micro.spans) {
    runs_.push_back({span.begin, span.size});
    values_.insert(values_.end(), in + span.at, in + span.at + span.size);
  }
}

std::vector<float> TokenValues::OnRank0(parallel::ParallelContext& context, at::Device device,
                                        int64_t tokens) const {
  const std::vector<std::string> parts = CollectBytes(context.world(), 0, Bytes(), device);
  if (context.world().rank() != 0) return {};
  std::vector<float> values(static_cast<size_t>(tokens), 0);
  for (const std::string& part : parts) ThrowIfError(Place(part, values));
  return values;
}

std::string TokenValues::Bytes() const {
  if (runs_.empty()) return "";
  const auto count = static_cast<uint64_t>(runs_.size());
  std::string bytes(reinterpret_cast<const char*>(&count), sizeof count);
  bytes.append(reinterpret_cast<const char*>(runs_.data()), runs_.size() * sizeof(Run));
  bytes.append(reinterpret_cast<const char*>(values_.data()), values_.size() * sizeof(float));
  return bytes;
}

Status TokenValues::Place(std::string_view bytes, std::span<float> values) {
  if (bytes.empty()) return Status::Ok();
  const Status other(StatusCode::kInternal,
                     fmt::format("{} bytes of a peer are not values of this step's {} tokens",
                                 bytes.size(), values.size()));
  uint64_t count = 0;
  if (bytes.size() < sizeof count) return other;
  std::memcpy(&count, bytes.data(), sizeof count);
  bytes.remove_prefix(sizeof count);
  if (bytes.size() / sizeof(Run) < count) return other;
  std::string_view floats = bytes.substr(count * sizeof(Run));
  for (; count > 0; --count) {
    Run run;
    std::memcpy(&run, bytes.data(), sizeof run);
    bytes.remove_prefix(sizeof run);
    const auto all = static_cast<int64_t>(values.size());
    if (run.first < 0 || run.size < 0 || run.first > all || run.size > all - run.first ||
        floats.size() / sizeof(float) < static_cast<size_t>(run.size))
      return other;
    const size_t size = static_cast<size_t>(run.size) * sizeof(float);
    std::memcpy(values.data() + run.first, floats.data(), size);
    floats.remove_prefix(size);
  }
  return floats.empty() ? Status::Ok() : other;
}

}  // namespace keel::trainer::rl
