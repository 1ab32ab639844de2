#include "parallel/store/store_adapter.h"

#include <c10/util/Exception.h>

#include <utility>

namespace keel::parallel {

namespace {

void Check(const Status& status) {
  if (status.ok()) return;
  if (status.code() == StatusCode::kDeadlineExceeded)
    C10_THROW_ERROR(DistStoreError, status.message());
  C10_THROW_ERROR(DistNetworkError, status.message());
}

template <typename T>
T Take(Result<T> result) {
  Check(result.status());
  return std::move(result).value();
}

std::string_view AsText(const std::vector<uint8_t>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<uint8_t> AsBytes(const std::string& text) { return {text.begin(), text.end()}; }

}  // namespace

c10::intrusive_ptr<c10d::Store> StoreAdapter::clone() {
  return c10::make_intrusive<StoreAdapter>(
      Take(StoreClient::Connect(client_->address(), timeout_, timeout_)), timeout_);
}

void StoreAdapter::set(const std::string& key, const std::vector<uint8_t>& value) {
  Check(client_->Set(key, AsText(value)));
}

std::vector<uint8_t> StoreAdapter::compareSet(const std::string& key,
                                              const std::vector<uint8_t>& expected,
                                              const std::vector<uint8_t>& value) {
  return AsBytes(Take(client_->CompareSet(key, AsText(expected), AsText(value))));
}

std::vector<uint8_t> StoreAdapter::get(const std::string& key) {
  wait({key}, timeout_);
  return AsBytes(Take(client_->Get(key)));
}

int64_t StoreAdapter::add(const std::string& key, int64_t amount) {
  return Take(client_->Add(key, amount));
}

bool StoreAdapter::deleteKey(const std::string& key) { return Take(client_->Delete(key)); }

bool StoreAdapter::check(const std::vector<std::string>& keys) { return Take(client_->Has(keys)); }

int64_t StoreAdapter::getNumKeys() { return Take(client_->NumKeys()); }

void StoreAdapter::wait(const std::vector<std::string>& keys,
                        const std::chrono::milliseconds& timeout) {
  Check(client_->Wait(keys, timeout));
}

void StoreAdapter::append(const std::string& key, const std::vector<uint8_t>& value) {
  Check(client_->Append(key, AsText(value)));
}

std::vector<std::vector<uint8_t>> StoreAdapter::multiGet(const std::vector<std::string>& keys) {
  wait(keys, timeout_);
  std::vector<std::vector<uint8_t>> values;
  for (const std::string& value : Take(client_->MultiGet(keys))) values.push_back(AsBytes(value));
  return values;
}

void StoreAdapter::multiSet(const std::vector<std::string>& keys,
                            const std::vector<std::vector<uint8_t>>& values) {
  TORCH_CHECK(keys.size() == values.size(), "multiSet: ", keys.size(), " keys and ", values.size(),
              " values");
  std::vector<std::string> texts;
  for (const auto& value : values) texts.emplace_back(AsText(value));
  Check(client_->MultiSet(keys, texts));
}

}  // namespace keel::parallel
