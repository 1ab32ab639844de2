#include "trainer/sync/group_bytes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

namespace keel::trainer {

namespace {

// How long the text of each rank is.
std::vector<int64_t> SizesOf(parallel::ProcessGroup& group, std::string_view mine,
                             at::Device device) {
  const at::Tensor length = at::full({1}, static_cast<int64_t>(mine.size()), at::kLong).to(device);
  at::Tensor lengths = at::empty({group.size()}, length.options());
  group.AllGather(lengths, length);
  lengths = lengths.cpu();
  group.CheckAlive();
  const int64_t* const sizes = lengths.const_data_ptr<int64_t>();
  return {sizes, sizes + group.size()};
}

// A copy on the device.
at::Tensor BytesOf(std::string_view text, at::Device device) {
  at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  if (!text.empty()) std::memcpy(bytes.data_ptr(), text.data(), text.size());
  return bytes.to(device);
}

// What an operation of the group brought.
std::string TextOf(const parallel::ProcessGroup& group, const at::Tensor& bytes) {
  const at::Tensor host = bytes.cpu();
  group.CheckAlive();
  return {reinterpret_cast<const char*>(host.const_data_ptr()), static_cast<size_t>(host.numel())};
}

}  // namespace

std::vector<std::string> AllGatherBytes(parallel::ProcessGroup& group, std::string_view mine,
                                        at::Device device) {
  if (group.size() == 1) return {std::string(mine)};
  const std::vector<int64_t> sizes = SizesOf(group, mine, device);
  // Each padded to the longest.
  const int64_t most = std::max<int64_t>(1, *std::max_element(sizes.begin(), sizes.end()));
  std::string padded(mine);
  padded.resize(static_cast<size_t>(most));
  at::Tensor all = at::empty({group.size() * most}, at::TensorOptions(at::kByte).device(device));
  group.AllGather(all, BytesOf(padded, device));
  all = all.cpu();
  std::vector<std::string> texts;
  for (size_t r = 0; r < sizes.size(); ++r)
    texts.push_back(TextOf(group, all.narrow(0, static_cast<int64_t>(r) * most, sizes[r])));
  return texts;
}

std::vector<std::string> ShareBytes(parallel::ProcessGroup& group, std::string_view mine,
                                    at::Device device) {
  if (group.size() == 1) return {std::string(mine)};
  const std::vector<int64_t> sizes = SizesOf(group, mine, device);
  std::vector<std::string> texts;
  for (int r = 0; r < group.size(); ++r) {
    const int64_t size = sizes[static_cast<size_t>(r)];
    at::Tensor bytes = r == group.rank()
                           ? BytesOf(mine, device)
                           : at::empty({size}, at::TensorOptions(at::kByte).device(device));
    if (size > 0) group.Broadcast(bytes, r);
    texts.push_back(TextOf(group, bytes));
  }
  return texts;
}

std::vector<std::string> CollectBytes(parallel::ProcessGroup& group, int root,
                                      std::string_view mine, at::Device device) {
  if (group.size() == 1) return {std::string(mine)};
  std::vector<int64_t> from = SizesOf(group, mine, device);
  if (group.rank() != root) from.assign(from.size(), 0);
  std::vector<int64_t> to(from.size(), 0);
  to[static_cast<size_t>(root)] = static_cast<int64_t>(mine.size());
  at::Tensor all = at::empty({std::accumulate(from.begin(), from.end(), int64_t{0})},
                             at::TensorOptions(at::kByte).device(device));
  group.AllToAllAsync(all, BytesOf(mine, device), from, to)->Wait();
  std::vector<std::string> texts;
  int64_t at = 0;
  for (const int64_t size : from) {
    texts.push_back(TextOf(group, all.narrow(0, at, size)));
    at += size;
  }
  return texts;
}

std::string ScatterBytes(parallel::ProcessGroup& group, int root, std::vector<std::string> parts,
                         at::Device device) {
  const auto ranks = static_cast<size_t>(group.size());
  const bool gives = group.rank() == root;
  if (gives && parts.size() != ranks) {
    throw Error(StatusCode::kInternal,
                fmt::format("{} parts for the {} ranks of {}", parts.size(), ranks, group.name()));
  }
  if (ranks == 1) return std::move(parts.front());
  std::vector<int64_t> to(ranks, 0), from(ranks, 0);
  std::string all;
  if (gives) {
    for (size_t r = 0; r < ranks; ++r) {
      to[r] = std::ssize(parts[r]);
      all += std::exchange(parts[r], {});
    }
  }
  at::Tensor sizes = at::tensor(to, at::kLong).to(device);
  group.Broadcast(sizes, root);
  from[static_cast<size_t>(root)] = sizes.cpu()[group.rank()].item<int64_t>();
  group.CheckAlive();
  at::Tensor mine =
      at::empty({from[static_cast<size_t>(root)]}, at::TensorOptions(at::kByte).device(device));
  group.AllToAllAsync(mine, BytesOf(all, device), from, to)->Wait();
  return TextOf(group, mine);
}

std::string RelayBytes(parallel::ProcessGroup& group, std::string mine, at::Device device) {
  const int rank = group.rank();
  if (rank > 0) {
    at::Tensor size = at::zeros({1}, at::TensorOptions(at::kLong).device(device));
    group.RecvAsync(size, rank - 1, 0)->Wait();
    const auto length = size.item<int64_t>();
    group.CheckAlive();
    at::Tensor bytes = at::empty({length}, at::TensorOptions(at::kByte).device(device));
    if (bytes.numel() > 0) group.RecvAsync(bytes, rank - 1, 1)->Wait();
    mine = TextOf(group, bytes);
  }
  if (rank + 1 < group.size()) {
    const at::Tensor size = at::full({1}, std::ssize(mine), at::kLong).to(device);
    const at::Tensor bytes = BytesOf(mine, device);
    group.SendAsync(size, rank + 1, 0)->Wait();
    if (bytes.numel() > 0) group.SendAsync(bytes, rank + 1, 1)->Wait();
  }
  return mine;
}

Status ShareStatus(parallel::ProcessGroup& group, const Status& mine, at::Device device) {
  const std::string said = mine.ok() ? std::string()
                                     : fmt::format("{} {} {}", static_cast<int>(mine.code()),
                                                   static_cast<int>(mine.cause()), mine.message());
  const std::string heard = ShareBytes(group, said, device).front();
  if (heard.empty()) return Status::Ok();
  const size_t code = heard.find(' ');
  const size_t cause = heard.find(' ', code + 1);
  return {static_cast<StatusCode>(std::stoi(heard.substr(0, code))),
          static_cast<StatusCause>(std::stoi(heard.substr(code + 1, cause - code - 1))),
          heard.substr(cause + 1)};
}

}  // namespace keel::trainer
