#include "parallel/groups/device_choice.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "common/json.h"

namespace keel::parallel {

std::string DeviceOffer::ToText() const {
  return Json{{"index", index}, {"gpu", gpu}, {"name", name}, {"lack", lack}}.dump(
      -1, ' ', false, Json::error_handler_t::replace);
}

Result<DeviceOffer> DeviceOffer::FromText(std::string_view text) {
  constexpr const char* kWhere = "a rank's device";
  KEEL_ASSIGN_OR_RETURN(const Json json, ParseJson(text, kWhere));
  DeviceOffer offer;
  KEEL_ASSIGN_OR_RETURN(const int64_t index, GetInt(json, "index", kWhere));
  offer.index = static_cast<int>(index);
  KEEL_ASSIGN_OR_RETURN(offer.gpu, GetString(json, "gpu", kWhere));
  KEEL_ASSIGN_OR_RETURN(offer.name, GetString(json, "name", kWhere));
  KEEL_ASSIGN_OR_RETURN(offer.lack, GetString(json, "lack", kWhere));
  return offer;
}

DeviceOffer OfferOf(const CudaModule& module, int local_rank, std::optional<int> wanted,
                    bool share) {
  DeviceOffer offer;
  const Result<int> count = module.DeviceCount();
  if (!count.ok()) {
    offer.lack = count.status().message();
    return offer;
  }
  const int turn = share && *count > 0 ? local_rank % *count : local_rank;
  const int index = wanted ? *wanted : *count == 1 ? 0 : turn;
  if (index >= *count) {
    offer.lack = wanted ? fmt::format("GPU {} of {} usable ones", index, *count)
                        : fmt::format("local rank {} of {} usable GPUs", local_rank, *count);
    return offer;
  }
  const Result<GpuFacts> facts = module.Describe(index);
  if (!facts.ok()) {
    offer.lack = facts.status().message();
    return offer;
  }
  offer.index = index;
  offer.gpu = facts->uuid;
  offer.name = facts->name;
  return offer;
}

Result<DeviceChoice> ChooseDevice(const std::vector<DeviceOffer>& offers, bool demanded,
                                  bool share) {
  std::map<std::string, int> owners;  // of GPUs
  std::string fault;
  int with_gpu = 0;
  for (size_t rank = 0; rank < offers.size(); ++rank) {
    const DeviceOffer& offer = offers[rank];
    std::string mine;
    if (offer.index < 0) {
      mine = fmt::format("rank {} has no GPU: {}", rank, offer.lack);
    } else {
      ++with_gpu;
      const auto [owner, first] = owners.emplace(offer.gpu, static_cast<int>(rank));
      if (!first && !share)
        mine = fmt::format("ranks {} and {} have one GPU between them, {} ({})", owner->second,
                           rank, offer.name, offer.gpu);
    }
    if (fault.empty()) fault = std::move(mine);
  }
  if (fault.empty()) {
    const DeviceOffer& first = offers.front();
    std::string said = offers.size() == 1
                           ? fmt::format("GPU {}, {}", first.index, first.name)
                           : fmt::format("{} GPUs, {} on rank 0", owners.size(), first.name);
    if (share && offers.size() > 1)
      said += fmt::format(", for {} ranks, whose messages go by way of their hosts", offers.size());
    return DeviceChoice{true, std::move(said)};
  }
  if (demanded) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("trainer.device: cuda: {}; start no more ranks on a node than it has "
                              "GPUs, or set trainer.device to cpu, or trainer.share_gpus",
                              fault));
  }
  return DeviceChoice{false, with_gpu == 0
                                 ? std::string("the CPU")
                                 : fmt::format("the CPU, although {} of {} ranks have a GPU: {}",
                                               with_gpu, offers.size(), fault)};
}

}  // namespace keel::parallel
