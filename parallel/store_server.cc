#include "parallel/store_server.h"

#include <fmt/format.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "parallel/store_impl.h"

namespace keel::parallel {

struct StoreServer::Impl {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

Result<StoreServer> StoreServer::Start(const std::string& host, int port) {
  IgnoreBrokenPipes();
  try {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(port);
    options.isServer = true;
    options.waitWorkers = false;
    options.timeout = std::chrono::seconds(30);
    auto impl = std::make_shared<Impl>();
    impl->store = c10::make_intrusive<c10d::TCPStore>(host, options);
    return StoreServer(std::move(impl));
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return Status(
        StatusCode::kUnavailable,
        fmt::format("the job's store cannot be served at {}:{}: {}; choose another --master-port",
                    host, port, text.substr(0, text.find('\n'))));
  }
}

int StoreServer::port() const { return impl_->store->getPort(); }

}  // namespace keel::parallel
