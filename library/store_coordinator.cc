#include "library/store_coordinator.h"

#include <fmt/format.h>

#include <tuple>
#include <utility>

#include "parallel/store/sockets.h"

namespace keel::library {

Status StoreCoordinator::Told(const Status& status) const {
  if (status.code() != StatusCode::kUnavailable) return status;
  return Status(status.code(),
                fmt::format("{}: rank {} of {} agrees with the others through it, and the process "
                            "that keeps it, rank 0's or the launcher, has ended or cannot be "
                            "reached: start the job again",
                            status.message(), rank_, world_));
}

Status StoreCoordinator::Put(std::string_view key, std::string_view value) {
  return Told(client_->Set(Named(key), value));
}

Result<std::string> StoreCoordinator::Get(std::string_view key,
                                          std::chrono::milliseconds deadline) {
  if (const Status status = client_->Wait({Named(key)}, deadline); !status.ok()) {
    if (status.code() != StatusCode::kDeadlineExceeded) return Told(status);
    return Status(status.code(), "nothing came in time");
  }
  Result<std::string> value = client_->Get(Named(key));
  if (!value.ok()) return Told(value.status());
  return value;
}

Status StoreCoordinator::Delete(std::string_view key) {
  return Told(client_->Delete(Named(key)).status());
}

Result<std::vector<std::optional<std::string>>> StoreCoordinator::Look(
    const std::vector<std::string>& keys, std::chrono::milliseconds patience) {
  auto values = client_->Look(Named(keys), patience);
  if (!values.ok()) return Told(values.status());
  return values;
}

Status StoreCoordinator::PutAll(const std::vector<std::string>& keys,
                                const std::vector<std::string>& values) {
  return Told(client_->MultiSet(Named(keys), values));
}

Status StoreCoordinator::DeleteAll(const std::vector<std::string>& keys) {
  return Told(client_->DeleteAll(Named(keys)));
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
