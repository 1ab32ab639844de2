// HttpClient: POSTs to one http or https address over libcurl, each within a deadline.
//
// One object belongs to one thread at a time, but for Cancel; it keeps its connection from one
// request to the next, unless it is to send each once. Proxies are those of the environment
// (http_proxy, https_proxy, all_proxy, no_proxy), as curl has them. Redirects are followed, at most
// five, from an https address to https alone. No message holds the address's user, password or
// query, or a token. Torch-free.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "common/status.h"

struct curl_slist;

namespace keel {

struct HttpOptions {
  std::string url;      // http:// or https://
  std::string ca_file;  // PEM; authorities to trust instead of the system's. "": the system's
  std::string keys = "reward.";  // what stands before url, timeout_seconds, ca_file in messages
  // Sent as "Authorization: Bearer ..." to the address's own host, whatever it redirects to. "":
  // none. It stands in no message.
  std::string bearer_token = {};
  // A connection that was used before may end while the service acts on a request, which libcurl
  // would then send once more: with `once` every request has a connection of its own.
  bool once = false;
};
// kConfig, naming `key`, unless the URL is one of http or https.
Status CheckHttpUrl(const std::string& url, std::string_view key = "reward.url");

// kConfig, naming `key`, where a token would be sent in clear over a network, or beside another
// user's name: expected https, or this machine, and no user in the address.
Status CheckTokenAddress(const std::string& url, std::string_view key);

class HttpClient {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  // Throws Error(kInternal) where libcurl cannot be used.
  explicit HttpClient(const HttpOptions& options);

  // Whether a connection can be made, with its TLS handshake and through the proxy. Errors as of
  // Post.
  Status Connect(Deadline deadline);

  // The body of the answer. Errors name the address, how far it got, and libcurl's words:
  // kUnavailable (no connection, no trust, or a status other than 200, with the first bytes of its
  // body), kDeadlineExceeded, kInvalidData (not HTTP, or more than 64 MiB).
  Result<std::string> Post(const std::string& body, Deadline deadline);

  // Of any thread: a request under way, within a second or so, and every later one end with
  // kCancelled.
  void Cancel() { cancelled_ = true; }

 private:
  // libcurl's CURL is void.
  using Handle = std::unique_ptr<void, void (*)(void*)>;
  Status Perform(void* handle, Deadline deadline);

  const std::string keys_;
  const std::string token_;
  Handle handle_;
  std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers_;
  std::string problem_;  // libcurl writes its words here
  std::atomic<bool> cancelled_{false};
};

}  // namespace keel
