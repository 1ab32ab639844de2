#include "parallel/groups/process_group_backend.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/guarded.h"

namespace keel::parallel {

std::string WhereInGroup::At() const {
  return step == nullptr || step->load() < 0 ? "" : fmt::format(" step {}", step->load());
}

Status WhereInGroup::Failure(std::string_view operation, std::string_view cause) const {
  const std::string_view text = cause.substr(0, cause.find('\n'));
  const bool late = text.find("imed out") != std::string_view::npos ||
                    text.find("imeout") != std::string_view::npos;
  const std::string at = At();
  if (late) {
    return {StatusCode::kDeadlineExceeded,
            fmt::format(
                "{} in group {} on rank {}{} took longer than {} s: a peer hangs or is lost ({}); "
                "trainer.deadline_seconds sets the limit",
                operation, group, rank, at, static_cast<double>(deadline.count()) / 1000, text)};
  }
  return {StatusCode::kUnavailable, fmt::format("{} in group {} on rank {}{}: lost a peer ({})",
                                                operation, group, rank, at, text)};
}

Status WhereInGroup::Failure(std::string_view operation, const std::exception& error) const {
  const Status status = StatusOf(error);
  if (status.code() != StatusCode::kExhausted) return Failure(operation, error.what());
  return status.WithContext(
      fmt::format("{} in group {} on rank {}{}", operation, group, rank, At()));
}

void WhereInGroup::Rethrow(std::string_view operation, const std::exception& error) const {
  throw Error(Failure(operation, error));
}

std::chrono::milliseconds LimitOf(std::chrono::steady_clock::duration left) {
  using std::chrono::milliseconds;
  return std::max(milliseconds(0), std::chrono::duration_cast<milliseconds>(left)) +
         milliseconds(1);
}

int RankInGroup(const GroupOptions& options, int global_rank) {
  const auto it = std::find(options.ranks.begin(), options.ranks.end(), global_rank);
  if (it == options.ranks.end()) {
    throw Error(StatusCode::kInternal,
                fmt::format("rank {} is not in group {}", global_rank, options.name));
  }
  return static_cast<int>(it - options.ranks.begin());
}

std::unique_ptr<Work> BackendGroup::Start(
    const char* operation, int peer, c10::function_ref<c10::intrusive_ptr<c10d::Work>()> begin) {
  CheckAlive();
  try {
    const at::NoGradGuard no_grad;
    return Watch(begin(), operation, peer);
  } catch (const std::exception& error) {
    CheckAlive();
    where_.Rethrow(operation, error);
  }
}

std::unique_ptr<Work> BackendGroup::AllReduceAsync(at::Tensor& tensor, ReduceOp op) {
  return Start("all-reduce", kAllRanks, [&] {
    std::vector<at::Tensor> tensors{tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = op == ReduceOp::kSum   ? c10d::ReduceOp::SUM
                       : op == ReduceOp::kMax ? c10d::ReduceOp::MAX
                                              : c10d::ReduceOp::MIN;
    return backend_.allreduce(tensors, options);
  });
}

std::unique_ptr<Work> BackendGroup::AllGatherAsync(at::Tensor& out, const at::Tensor& in) {
  return Start("all-gather", kAllRanks, [&] {
    at::Tensor flat_out = out.view({-1});
    at::Tensor flat_in = in.reshape({-1});
    return backend_._allgather_base(flat_out, flat_in);
  });
}

std::unique_ptr<Work> BackendGroup::ReduceScatterAsync(at::Tensor& out, const at::Tensor& in) {
  return Start("reduce-scatter", kAllRanks, [&] {
    at::Tensor flat_out = out.view({-1});
    at::Tensor flat_in = in.reshape({-1});
    return backend_._reduce_scatter_base(flat_out, flat_in);
  });
}

std::unique_ptr<Work> BackendGroup::AllToAllAsync(at::Tensor& out, const at::Tensor& in,
                                                  const std::vector<int64_t>& out_sizes,
                                                  const std::vector<int64_t>& in_sizes) {
  return Start("all-to-all", kAllRanks, [&] {
    at::Tensor flat_out = out.view({-1});
    at::Tensor flat_in = in.reshape({-1});
    std::vector<int64_t> to = out_sizes;
    std::vector<int64_t> from = in_sizes;
    return backend_.alltoall_base(flat_out, flat_in, to, from);
  });
}

void BackendGroup::Broadcast(at::Tensor& tensor, int root) {
  Start("broadcast", kAllRanks, [&] {
    std::vector<at::Tensor> tensors{tensor};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return backend_.broadcast(tensors, options);
  })->Wait();
}

std::unique_ptr<Work> BackendGroup::SendAsync(const at::Tensor& tensor, int peer, int tag) {
  return Start("send", peer, [&] {
    std::vector<at::Tensor> tensors{tensor};
    return backend_.send(tensors, peer, tag);
  });
}

std::unique_ptr<Work> BackendGroup::RecvAsync(at::Tensor& tensor, int peer, int tag) {
  return Start("receive", peer, [&] {
    std::vector<at::Tensor> tensors{tensor};
    return backend_.recv(tensors, peer, tag);
  });
}

void BackendGroup::Barrier() {
  Start("barrier", kAllRanks, [&] { return backend_.barrier(); })->Wait();
}

}  // namespace keel::parallel
