#include "trainer/run/device_agreement.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <utility>
#include <vector>

#include "common/json.h"
#include "parallel/groups/cuda_module.h"

namespace keel::trainer {

namespace {

constexpr const char* kDeviceTag = "device";

// What rank 0 tells all.
Result<std::string> Conclude(const std::vector<std::string>& texts, const DeviceWish& wish) {
  std::vector<parallel::DeviceOffer> offers;
  for (const std::string& text : texts) {
    KEEL_ASSIGN_OR_RETURN(parallel::DeviceOffer offer, parallel::DeviceOffer::FromText(text));
    offers.push_back(std::move(offer));
  }
  KEEL_ASSIGN_OR_RETURN(const parallel::DeviceChoice choice,
                        parallel::ChooseDevice(offers, wish.kind == DeviceKind::kCuda, wish.share));
  return Json{{"cuda", choice.cuda}, {"said", choice.said}}.dump();
}

}  // namespace

Result<DeviceWish> ParseDeviceWish(const std::string& text) {
  DeviceWish wish;
  const size_t colon = text.find(':');
  const auto kind = ParseName<DeviceKind>(text.substr(0, colon));
  const std::string number = colon == std::string::npos ? "" : text.substr(colon + 1);
  const bool is_number = !number.empty() && number.size() < 4 &&
                         std::all_of(number.begin(), number.end(),
                                     [](unsigned char c) { return std::isdigit(c) != 0; });
  if (!kind || (colon != std::string::npos && (*kind != DeviceKind::kCuda || !is_number))) {
    return Status(StatusCode::kUsage,
                  fmt::format("device '{}': expected auto, cpu, cuda, or cuda:N with the number of "
                              "a GPU",
                              text));
  }
  wish.kind = *kind;
  if (is_number) wish.index = std::stoi(number);
  return wish;
}

Result<parallel::DeviceOffer> OfferHere(const DeviceWish& wish, int local_rank) {
  parallel::DeviceOffer offer;
  if (wish.kind == DeviceKind::kCpu) {
    offer.lack = "the CPU was asked for";
    return offer;
  }
  if (wish.kind == DeviceKind::kAuto && access("/dev/nvidiactl", F_OK) != 0) {
    offer.lack = "no NVIDIA driver";
    return offer;
  }
  const auto module = parallel::LoadCudaModule();
  if (module.ok()) {
    offer = parallel::OfferOf(**module, local_rank, wish.index, wish.share);
  } else {
    offer.lack = module.status().message();
  }
  if (offer.index >= 0) {
    (*module)->SetDevice(offer.index);
  } else if (wish.kind == DeviceKind::kCuda) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("device: cuda: {}; start no more ranks on a node than it has GPUs, "
                              "or set the device to cpu",
                              offer.lack));
  }
  return offer;
}

at::Device DeviceOf(const parallel::DeviceOffer& offer) {
  return offer.index < 0 ? at::Device(at::kCPU)
                         : at::Device(at::kCUDA, static_cast<at::DeviceIndex>(offer.index));
}

Result<AgreedDevice> AgreeOnDevice(checkpoint::Coordinator& coordinator,
                                   const parallel::DeviceOffer& mine, const DeviceWish& wish,
                                   std::chrono::milliseconds deadline) {
  KEEL_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                        checkpoint::Gather(coordinator, fmt::format("{}/offer", kDeviceTag),
                                           mine.ToText(), deadline));
  const bool leads = coordinator.rank() == 0;
  const Result<std::string> concluded =
      leads ? Conclude(texts, wish) : Result<std::string>(std::string());
  KEEL_ASSIGN_OR_RETURN(
      const std::string told,
      checkpoint::BroadcastResult(coordinator, fmt::format("{}/choice", kDeviceTag), concluded,
                                  deadline));
  KEEL_ASSIGN_OR_RETURN(const Json json, ParseJson(told, kDeviceTag));
  KEEL_ASSIGN_OR_RETURN(const bool cuda, GetBool(json, "cuda", kDeviceTag));
  AgreedDevice agreed;
  KEEL_ASSIGN_OR_RETURN(agreed.said, GetString(json, "said", kDeviceTag));
  if (cuda) agreed.device = DeviceOf(mine);
  agreed.refused = !cuda && mine.index >= 0;
  return agreed;
}

}  // namespace keel::trainer
