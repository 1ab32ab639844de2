#include "parallel/groups/first_contact.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>

namespace keel::parallel {

Status MeetInStore(const Store& store, int rank, const std::vector<int>& ranks,
                   std::chrono::milliseconds deadline) {
  const auto key = [](int r) { return fmt::format("here/{}", r); };
  KEEL_RETURN_IF_ERROR(store.Set(key(rank), ""));
  KEEL_ASSIGN_OR_RETURN(const int64_t come, store.Add("come", 1));
  if (come == static_cast<int64_t>(ranks.size())) return store.Set("all", "");
  const Result<std::string> all = store.Get("all", deadline);
  if (all.ok() || all.status().code() != StatusCode::kDeadlineExceeded) return all.status();
  std::vector<int> missing;
  for (const int r : ranks)
    if (!store.Get(key(r), std::chrono::milliseconds(0)).ok()) missing.push_back(r);
  return {StatusCode::kDeadlineExceeded,
          fmt::format("rank {} waited {} s for {} {}, which did not come; trainer.deadline_seconds "
                      "sets the limit",
                      rank, static_cast<double>(deadline.count()) / 1000,
                      missing.size() == 1 ? "rank" : "ranks", fmt::join(missing, ", "))};
}

void ConnectNeighbours(ProcessGroup& group, bool forward, const at::Device& device) {
  const int stage = group.rank();
  at::Tensor message = at::zeros({1}, at::TensorOptions().dtype(at::kFloat).device(device));
  for (int link = 0; link + 1 < group.size(); ++link) {
    const int from = forward ? link : link + 1;
    const int to = forward ? link + 1 : link;
    if (stage == from) group.SendAsync(message, to, link)->Wait();
    if (stage == to) group.RecvAsync(message, from, link)->Wait();
    if (stage == from || stage == to) static_cast<void>(message.item<float>());  // it has passed
  }
}

}  // namespace keel::parallel
