#include "trainer/run/group_channel.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <memory>
#include <utility>

namespace keel::trainer {
namespace {

constexpr int kTags = 1 << 30;

// Of memory that the caller keeps; never written to when it is sent.
at::Tensor Bytes(const std::byte* data, size_t size) {
  return at::from_blob(const_cast<std::byte*>(data), {static_cast<int64_t>(size)}, at::kByte);
}

}  // namespace

GroupChannel::GroupChannel(parallel::ProcessGroup& group)
    : group_(group),
      sent_(static_cast<size_t>(group.size()), 0),
      received_(static_cast<size_t>(group.size()), 0) {}

Status GroupChannel::Exchange(std::span<const Send> sends, std::span<const Receive> receives,
                              std::chrono::milliseconds /*deadline*/) {
  struct Pending {
    int peer;
    bool from;
    at::Tensor bytes;
    std::unique_ptr<parallel::Work> work;
  };
  std::vector<Pending> pending;
  pending.reserve(sends.size() + receives.size());
  const auto next_tag = [](std::vector<int>& counts, int peer) {
    int& count = counts[static_cast<size_t>(peer)];
    return std::exchange(count, (count + 1) % kTags);
  };
  const auto failed = [&](const Error& error, int peer, bool from) {
    return error.status().WithContext(fmt::format("rank {} waited for rank {} to {} what was read",
                                                  group_.rank(), peer, from ? "hand on" : "take"));
  };
  for (const Receive& one : receives) {
    Pending& next = pending.emplace_back(
        Pending{one.peer, true, Bytes(one.bytes.data(), one.bytes.size()), nullptr});
    try {
      next.work = group_.RecvAsync(next.bytes, one.peer, next_tag(received_, one.peer));
    } catch (const Error& error) {
      return failed(error, one.peer, true);
    }
  }
  for (const Send& one : sends) {
    Pending& next = pending.emplace_back(
        Pending{one.peer, false, Bytes(one.bytes.data(), one.bytes.size()), nullptr});
    try {
      next.work = group_.SendAsync(next.bytes, one.peer, next_tag(sent_, one.peer));
    } catch (const Error& error) {
      return failed(error, one.peer, false);
    }
  }
  for (Pending& one : pending) {
    try {
      one.work->Wait();
    } catch (const Error& error) {
      return failed(error, one.peer, one.from);
    }
  }
  return Status::Ok();
}

}  // namespace keel::trainer
