#include "parallel/context.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

namespace keel::parallel {

ParallelContext::ParallelContext(const Layout& layout, int rank, const Store& store,
                                 const ContextOptions& options)
    : layout_(layout), rank_(rank), store_(store), options_(options) {
  const auto make = [&](const char* name, std::vector<int> ranks) {
    GroupOptions group;
    group.name = name;
    group.ranks = std::move(ranks);
    group.deadline = options.deadline;
    group.cuda = options.cuda;
    group.device_index = options.device_index;
    group.local_address = options.local_address;
    group.step = &step_;
    return MakeProcessGroup(store_, rank_, group);
  };
  std::vector<int> everyone;
  for (int r = 0; r < layout.world(); ++r) everyone.push_back(r);
  world_ = make("world", everyone);
  tp_ = make("tp", layout.GroupRanks(rank, Axis::kTp));
  dp_ = make("dp", layout.GroupRanks(rank, Axis::kDp));
  const std::vector<int> pipeline = layout.GroupRanks(rank, Axis::kPp);
  pp_forward_ = make("pp_forward", pipeline);
  pp_backward_ = make("pp_backward", pipeline);
  if (pipeline.size() > 1 && (rank == pipeline.front() || rank == pipeline.back())) {
    tied_embedding_ = make("tied_embedding", {pipeline.front(), pipeline.back()});
  }
}

std::string ParallelContext::Overview() const {
  std::string text = fmt::format("world {} = {}", layout_.world(), layout_.ToString());
  const auto add = [&](const char* name, Axis axis) {
    if (layout_.degree(axis) == 1) return;
    text += fmt::format("; {}", name);
    for (const auto& group : layout_.Groups(axis))
      text += fmt::format(" {{{}}}", fmt::join(group, " "));
  };
  add("tp", Axis::kTp);
  add("dp", Axis::kDp);
  add("pp", Axis::kPp);
  return text;
}

void ParallelContext::Shutdown() {
  for (auto* group : {&tied_embedding_, &pp_backward_, &pp_forward_, &dp_, &tp_, &world_}) {
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
