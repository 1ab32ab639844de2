#include "parallel/groups/context.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string_view>
#include <utility>

#include "parallel/groups/first_contact.h"

namespace keel::parallel {

ParallelContext::ParallelContext(const Layout& layout, int rank, const Store& store,
                                 const ContextOptions& options)
    : layout_(layout), rank_(rank), store_(store), options_(options) {
  const auto make = [&](std::string_view name, std::vector<int> ranks) {
    GroupOptions group;
    group.name = name;
    group.ranks = std::move(ranks);
    group.deadline = options.deadline;
    group.cuda = options.cuda;
    group.by_host = options.by_host;
    group.device_index = options.device_index;
    group.local_address = options.local_address;
    group.step = &step_;
    return MakeProcessGroup(store_, rank_, group);
  };
  std::vector<int> everyone;
  for (int r = 0; r < layout.world(); ++r) everyone.push_back(r);
  world_ = make("world", everyone);
  for (const AxisDegree& one : layout.axes()) {
    if (one.axis == Axis::kPp) continue;
    groups_[one.axis] = make(NameOf(one.axis), layout.GroupRanks(rank, one.axis));
  }
  const std::vector<int> pipeline = layout.GroupRanks(rank, Axis::kPp);
  pp_forward_ = make("pp_forward", pipeline);
  pp_backward_ = make("pp_backward", pipeline);
  const at::Device device =
      options.cuda ? at::Device(at::kCUDA, static_cast<at::DeviceIndex>(options.device_index))
                   : at::Device(at::kCPU);
  ConnectNeighbours(*pp_forward_, true, device);
  ConnectNeighbours(*pp_backward_, false, device);
  if (pipeline.size() > 1 && (rank == pipeline.front() || rank == pipeline.back())) {
    tied_embedding_ = make("tied_embedding", {pipeline.front(), pipeline.back()});
  }
}

ProcessGroup& ParallelContext::group(Axis axis) {
  const auto found = groups_.find(axis);
  TORCH_CHECK(found != groups_.end(), "ParallelContext: no group along ", NameOf(axis));
  return *found->second;
}

std::string ParallelContext::Overview() const {
  std::string text = fmt::format("world {} = {}", layout_.world(), layout_.ToString());
  for (const AxisDegree& one : layout_.axes()) {
    if (one.degree == 1) continue;
    text += fmt::format("; {}", NameOf(one.axis));
    for (const auto& group : layout_.Groups(one.axis))
      text += fmt::format(" {{{}}}", fmt::join(group, " "));
  }
  return text;
}

void ParallelContext::Shutdown() {
  std::vector<std::unique_ptr<ProcessGroup>*> made = {&tied_embedding_, &pp_backward_,
                                                      &pp_forward_};
  for (auto one = layout_.axes().rbegin(); one != layout_.axes().rend(); ++one)
    if (groups_.contains(one->axis)) made.push_back(&groups_.at(one->axis));
  made.push_back(&world_);
  for (auto* group : made) {
    if (*group) (*group)->Shutdown();
    group->reset();
  }
}

std::string LocalAddressTowards(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (host.empty() || getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return "127.0.0.1";
  std::string result = "127.0.0.1";
  const int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd >= 0) {
    sockaddr_storage local{};
    socklen_t size = sizeof local;
    // Connecting a datagram socket sends nothing; it only chooses the route.
    if (connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) == 0) {
      std::array<char, NI_MAXHOST> name{};
      if (getnameinfo(reinterpret_cast<sockaddr*>(&local), size, name.data(), name.size(), nullptr,
                      0, NI_NUMERICHOST) == 0) {
        result = name.data();
      }
    }
    close(fd);
  }
  freeaddrinfo(found);
  return result;
}

}  // namespace keel::parallel
