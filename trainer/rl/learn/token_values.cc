#include "trainer/rl/learn/token_values.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/wire.h"
#include "trainer/sync/group_bytes.h"

namespace keel::trainer::rl {

void TokenValues::Add(const RlMicroBatch& micro, const at::Tensor& rows) {
  added_.push_back(rows.detach().to(at::kFloat));
  for (const RlMicroBatch::Span& span : micro.spans) {
    runs_.push_back({span.begin, span.size});
    places_.push_back(rows_ + span.at);
  }
  rows_ += rows.size(0);
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
  const at::Tensor host = at::cat(added_).cpu();
  const float* const in = host.const_data_ptr<float>();
  WireWriter out;
  out.Count(runs_.size()).Pods(runs_);
  for (size_t i = 0; i < runs_.size(); ++i)
    out.Pods(std::span(in + places_[i], static_cast<size_t>(runs_[i].size)));
  return std::move(out).Take();
}

Status TokenValues::Place(std::string_view bytes, std::span<float> values) {
  if (bytes.empty()) return Status::Ok();
  const Status other(StatusCode::kInternal,
                     fmt::format("{} bytes of a peer are not values of this step's {} tokens",
                                 bytes.size(), values.size()));
  WireReader in(bytes);
  uint64_t count = 0;
  std::vector<Run> runs;
  if (!in.U64(&count) || !in.Pods(count, &runs)) return other;
  const auto all = std::ssize(values);
  for (const Run& run : runs) {
    if (run.first < 0 || run.size < 0 || run.first > all || run.size > all - run.first ||
        !in.Pods(values.subspan(static_cast<size_t>(run.first), static_cast<size_t>(run.size))))
      return other;
  }
  return in.AtEnd() ? Status::Ok() : other;
}

}  // namespace keel::trainer::rl
