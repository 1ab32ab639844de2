// One HTTP/1.1 POST over a plain socket, within a deadline. Torch-free; no TLS.
#pragma once

#include <chrono>
#include <string>

#include "common/status.h"

namespace keel::rewards {

struct HttpAddress {
  std::string host;
  std::string port = "80";
  std::string path = "/";
};
// "http://host[:port][/path]"; an IPv6 host stands in brackets. kConfig otherwise.
Result<HttpAddress> ParseHttpAddress(const std::string& url);

// Whether somebody accepts a connection there. Errors: kUnavailable, kDeadlineExceeded.
Status HttpConnect(const HttpAddress& address, std::chrono::steady_clock::time_point deadline);

// The body of the answer. Errors: kUnavailable (no connection, or a status other than 200, with the
// first bytes of its body), kDeadlineExceeded, kInvalidData (not HTTP, or more than 64 MiB).
// Looking up a host's name is the system's, with the system's time limit.
Result<std::string> HttpPost(const HttpAddress& address, const std::string& body,
                             std::chrono::steady_clock::time_point deadline);

}  // namespace keel::rewards
