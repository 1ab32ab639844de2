#include "checkpoint/load/load_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "common/tensors/transfer_check.h"
#include "common/text.h"

namespace keel::checkpoint {

namespace {

Status Stop(std::string message) { return Status(StatusCode::kConfig, std::move(message)); }

}  // namespace

bool TakesHfWeights(const LoadRequest& request) {
  return request.contents.hf_model && !request.contents.model;
}

Status CheckRequest(const LoadRequest& request, const StepReader& reader, std::string_view where,
                    std::string_view allow_missing) {
  const Manifest& manifest = reader.manifest();
  if (!request.config_digest.empty() && !manifest.config_digest.empty() &&
      request.config_digest != manifest.config_digest) {
    return Stop(fmt::format(
        "{} is a checkpoint of another model: its config digest is '{}', this run's is '{}'. "
        "Use the configuration that it was saved with, or another default_local_dir",
        where, Printable(manifest.config_digest, 1000), request.config_digest));
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
  const Contents& wanted = request.contents;
  if (!wanted.model && !wanted.hf_model && !wanted.optimizer) return Status::Ok();
  for (const RoleState& role : request.roles) {
    if (HoldsRole(manifest, role.name) || MatchesAny(request.allow_missing, role.name)) continue;
    return Stop(
        fmt::format("{} holds no role '{}', only: {}. Name '{}' in {} to let this run's own "
                    "stay as it is",
                    where, role.name, Printable(fmt::format("{}", fmt::join(manifest.roles, ", "))),
                    role.name, allow_missing));
  }
  for (const std::string& role : manifest.roles) {
    const bool known = std::any_of(request.roles.begin(), request.roles.end(),
                                   [&](const RoleState& one) { return one.name == role; });
    if (known || MatchesAny(request.allow_missing, role)) continue;
    return Stop(
        fmt::format("{} holds the role '{}', which this run does not have and would not "
                    "save again. Name '{}' in {} to leave it out",
                    where, Printable(role), Printable(role), allow_missing));
  }
  return Status::Ok();
}

bool HoldsRole(const Manifest& manifest, std::string_view role) {
  return std::find(manifest.roles.begin(), manifest.roles.end(), role) != manifest.roles.end();
}

}  // namespace keel::checkpoint
