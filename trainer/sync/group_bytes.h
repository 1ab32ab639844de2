// Texts of any length between the ranks of a process group.
#pragma once

#include <ATen/ATen.h>

#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "common/status.h"
#include "parallel/groups/process_group.h"

namespace keel::trainer {

// Every rank's text, in group order, on every rank: small structures that all must know. This and
// the others are collective over `group`, whose tensors are on `device`.
std::vector<std::string> AllGatherBytes(parallel::ProcessGroup& group, std::string_view mine,
                                        at::Device device);

// The same for few texts that are long: each goes out once as it is, nothing is padded.
std::vector<std::string> ShareBytes(parallel::ProcessGroup& group, std::string_view mine,
                                    at::Device device);

// Every rank's text, in group order, on rank `root` of the group; empty ones on the others.
std::vector<std::string> CollectBytes(parallel::ProcessGroup& group, int root,
                                      std::string_view mine, at::Device device);

// The other way: parts[r] of rank `root`, whose size is the group's, on rank r. Others give none.
std::string ScatterBytes(parallel::ProcessGroup& group, int root, std::vector<std::string> parts,
                         at::Device device);

// The first rank's text on every rank, each of which gets it from the one before: for a group that
// has no collectives, as a pipeline's. Others' texts are not looked at.
std::string RelayBytes(parallel::ProcessGroup& group, std::string mine, at::Device device);

// Rank 0's value on every rank. T: trivially copyable, and of one size on all.
template <typename T>
T ShareValue(parallel::ProcessGroup& group, T mine, at::Device device) {
  static_assert(std::is_trivially_copyable_v<T>);
  at::Tensor bytes = at::empty({sizeof(T)}, at::kByte);
  std::memcpy(bytes.data_ptr(), &mine, sizeof(T));
  bytes = bytes.to(device);
  group.Broadcast(bytes, 0);
  bytes = bytes.cpu();
  std::memcpy(&mine, bytes.const_data_ptr(), sizeof(T));
  return mine;
}

// Rank 0's status, on every rank.
Status ShareStatus(parallel::ProcessGroup& group, const Status& mine, at::Device device);

}  // namespace keel::trainer
