#include "library/store_coordinator.h"

#include <fmt/format.h>

#include <tuple>
#include <utility>

#include "parallel/store/sockets.h"

namespace keel::library {

Status StoreCoordinator::Put(std::string_view key, std::string_view value) {
  return client_->Set(Named(key), value);
}

Result<std::string> StoreCoordinator::Get(std::string_view key,
                                          std::chrono::milliseconds deadline) {
  KEEL_RETURN_IF_ERROR(client_->Wait({Named(key)}, deadline));
  return client_->Get(Named(key));
}

Status StoreCoordinator::Delete(std::string_view key) {
  return client_->Delete(Named(key)).status();
}

Result<std::vector<std::optional<std::string>>> StoreCoordinator::Look(
    const std::vector<std::string>& keys, std::chrono::milliseconds patience) {
  return client_->Look(Named(keys), patience);
}

Status StoreCoordinator::PutAll(const std::vector<std::string>& keys,
                                const std::vector<std::string>& values) {
  return client_->MultiSet(Named(keys), values);
}

Status StoreCoordinator::DeleteAll(const std::vector<std::string>& keys) {
  return client_->DeleteAll(Named(keys));
}

std::vector<std::string> StoreCoordinator::Named(const std::vector<std::string>& keys) const {
  std::vector<std::string> names;
  names.reserve(keys.size());
  for (const std::string& key : keys) names.push_back(Named(key));
  return names;
}

Result<parallel::StoreAddress> ParseStoreAddress(std::string_view text) {
  const auto parsed = parallel::ParseHostPort(text);
  if (!parsed) {
    return Status(StatusCode::kUsage,
                  fmt::format("the store is '{}', expected host:port of the job's key-value store, "
                              "as in 10.0.0.1:29500",
                              text));
  }
  parallel::StoreAddress address;
  std::tie(address.host, address.port) = *parsed;
  return address;
}

}  // namespace keel::library
