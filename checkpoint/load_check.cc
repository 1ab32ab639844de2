#include "checkpoint/load_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

namespace keel::checkpoint {

namespace {

Status Stop(std::string message) { return Status(StatusCode::kConfig, std::move(message)); }

}  // namespace

bool TakesHfWeights(const LoadRequest& request) {
  return request.contents.hf_model && !request.contents.model;
}

Status CheckRequest(const LoadRequest& request, const StepReader& reader, std::string_view where) {
  const Manifest& manifest = reader.manifest();
  if (!request.config_digest.empty() && !manifest.config_digest.empty() &&
      request.config_digest != manifest.config_digest) {
    return Stop(fmt::format(
        "{} is a checkpoint of another model: its config digest is '{}', this run's is '{}'. "
        "Use the configuration that it was saved with, or another default_local_dir",
        where, manifest.config_digest, request.config_digest));
  }
  const auto lacks = [&](std::string_view content) {
    return Stop(fmt::format(
        "{} holds no {}: it was saved with save_contents {}; leave '{}' out of load_contents",
        where, content, fmt::join(manifest.contents.Names(), ", "), content));
  };
  if (request.contents.model && !manifest.contents.model) return lacks("model");
  if (TakesHfWeights(request) && !manifest.contents.hf_model) return lacks("hf_model");
  if (request.contents.optimizer && !manifest.contents.optimizer) return lacks("optimizer");
  if (request.contents.extra && !manifest.contents.extra) return lacks("extra");
  for (const RoleState& role : request.roles) {
    if (std::find(manifest.roles.begin(), manifest.roles.end(), role.name) ==
        manifest.roles.end()) {
      return Stop(fmt::format("{} holds no role '{}', only: {}", where, role.name,
                              fmt::join(manifest.roles, ", ")));
    }
  }
  return Status::Ok();
}

}  // namespace keel::checkpoint
