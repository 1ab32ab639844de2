// HttpService: HTTP/1.1 on a socket, with limits. Torch-free; the one place that knows
// cpp-httplib.
//
// A thread a connection, up to `most_connections`; one more is answered 503 and closed. A request
// must have come within `request_seconds` from its first byte, however it dribbles. A body must be
// JSON of a length that is said, within `most_body_bytes`: all else is refused before it is read.
// Without a key a request must name this server as its own machine would (host_header.h): pages of
// other sites are kept out, whatever their names resolve to.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"
#include "serve/refusal.h"

namespace keel::serve {

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 0;         // 0: one that is free
  std::string api_key;  // "": none is asked for
  int64_t most_connections = 512;
  int64_t most_body_bytes = int64_t{8} << 20;
  std::chrono::seconds request{30};     // for a request to come in whole
  std::chrono::seconds write{30};       // for a client to take what is written
  std::chrono::seconds keep_alive{15};  // between requests of a connection
  // Every problem as a sentence; an address that others reach without a key is one.
  std::vector<std::string> Validate() const;
};

struct HttpRequest {
  std::string method, path, body;  // of an absolute URI, which proxies send, the path alone
};

// Where a streamed answer goes, and whether anybody is there to take it.
class HttpClient {
 public:
  virtual ~HttpClient() = default;
  virtual bool gone() = 0;                        // or will send nothing more
  virtual bool Write(std::string_view text) = 0;  // false: gone
};

// What logs say of a client that left before its answer. One that has only ended what it sends may
// read it.
constexpr int kClientClosedRequest = 499;

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  std::vector<std::pair<std::string, std::string>> headers = {};
  // Not empty: called for the body, which it writes. False: cut off, so that the client sees that
  // the end is missing.
  std::function<bool(HttpClient&)> stream = {};
};

class HttpService {
 public:
  // Called on a connection's thread; `client` only to ask whether it is gone. All that is not
  // handled comes back with 404 or 405 from the handler.
  using Handler = std::function<HttpReply(const HttpRequest&, HttpClient& client)>;
  // How a refusal is written, as the body of an answer of JSON, and who hears of each response.
  using Writer = std::function<std::string(const Refusal&)>;
  using Listener = std::function<void(const std::string& path, int status)>;
  // Paths that need no key.
  HttpService(HttpOptions options, std::vector<std::string> open_paths, Handler handler,
              Writer writer, Listener listener);
  ~HttpService();  // Join(0)

  // Listens and returns. kUnavailable: the address is taken, or not this machine's.
  Status Start();
  int port() const;
  // Takes no connection any more; what runs goes on, a request that has not come in whole ends with
  // its first pause, and connections end with their request.
  void StopAccepting();
  // Returns once the last connection has ended, or after `patience`, when all are cut: how many.
  int64_t Join(std::chrono::milliseconds patience);

  int64_t open_connections() const;

 private:
  class Server;
  std::unique_ptr<Server> server_;
};

// Whether two texts are equal, in a time that depends on the length of `given` alone.
bool EqualInConstantTime(std::string_view given, std::string_view secret);

}  // namespace keel::serve
