// The keel_watch module: the page of `keel watch --http` over HTTP. See tools/watch/watch_server.h.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "common/json.h"
#include "serve/http_service.h"
#include "tools/watch/watch_server.h"

namespace keel::tools {

namespace {

constexpr std::string_view kAfter = "/after/", kMetrics = "/metrics";
// After which a client that waits hears that nothing is new.
constexpr std::chrono::seconds kLongestWait{10};
constexpr std::chrono::milliseconds kSlice{200};
// Nothing else may be loaded, and nothing of the page's text can run but its own script.
constexpr const char* kPolicy =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src "
    "'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

std::string RefusalText(const serve::Refusal& refusal) {
  return Json{{"error", refusal.message}}.dump();
}

// The newest answer, between the thread that looks and those that serve.
class Newest {
 public:
  void Put(std::string answer) {
    const std::lock_guard lock(mutex_);
    answer_ = std::move(answer);
    ++version_;
    changed_.notify_all();
  }
  int64_t next() const {
    const std::lock_guard lock(mutex_);
    return version_ + 1;
  }
  void End() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  // The answer once it is another than that of `version`, or the same after a while.
  std::string After(int64_t version, serve::HttpClient& client) {
    const auto end = std::chrono::steady_clock::now() + kLongestWait;
    std::unique_lock lock(mutex_);
    while (version_ == version && !ended_ && std::chrono::steady_clock::now() < end) {
      changed_.wait_for(lock, kSlice);
      lock.unlock();
      const bool gone = client.gone();
      lock.lock();
      if (gone) break;
    }
    return answer_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string answer_;
  int64_t version_ = 0;
  bool ended_ = false;
};

serve::HttpReply Refused(int status, std::string message) {
  return {status, "application/json",
          RefusalText({.status = status, .message = std::move(message)})};
}

serve::HttpReply Reply(const serve::HttpRequest& request, serve::HttpClient& client,
                       std::string_view page, const WatchSource& source, Newest& newest) {
  const bool answers = request.path.starts_with(kAfter), metrics = request.path == kMetrics;
  if (request.path != "/" && !answers && !metrics) return Refused(404, "there are / and /metrics");
  if (request.method != "GET" && request.method != "HEAD") return Refused(405, "expected GET");
  serve::HttpReply reply;
  reply.headers = {{"Content-Security-Policy", kPolicy},
                   {"Cache-Control", "no-store"},
                   {"X-Content-Type-Options", "nosniff"}};
  if (metrics) {
    std::optional<std::string> text = source.Metrics();
    if (!text)
      return Refused(404, "the run writes no metrics.prom: its trainer.logger lacks prometheus");
    reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
    reply.body = std::move(*text);
    return reply;
  }
  if (!answers) {
    reply.content_type = "text/html; charset=utf-8";
    reply.body = page;
    return reply;
  }
  int64_t version = 0;
  const std::string_view number = std::string_view(request.path).substr(kAfter.size());
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), version);
  if (error != std::errc() || end != number.data() + number.size())
    return Refused(404, "expected /after/ and a number");
  reply.body = newest.After(version, client);
  return reply;
}

Status Serve(const WatchServerOptions& options, WatchSource& source, std::string_view page,
             const std::function<void(int port)>& listening) {
  serve::HttpOptions http;
  http.host = options.host;
  http.port = options.port;
  http.api_key = options.key;
  http.most_connections = 64;
  Newest newest;
  serve::HttpService service(
      http, {"/"},
      [&](const serve::HttpRequest& request, serve::HttpClient& client) {
        return Reply(request, client, page, source, newest);
      },
      RefusalText, [](const std::string&, int) {});
  (void)source.Look();
  newest.Put(source.Answer(newest.next()));
  KEEL_RETURN_IF_ERROR(service.Start());
  listening(service.port());
  auto next = std::chrono::steady_clock::now();
  while (!*options.stop) {
    std::this_thread::sleep_for(std::min<std::chrono::milliseconds>(kSlice, options.period));
    if (std::chrono::steady_clock::now() < next) continue;
    next = std::chrono::steady_clock::now() + options.period;
    if (source.Look()) newest.Put(source.Answer(newest.next()));
  }
  newest.End();
  service.StopAccepting();
  service.Join(std::chrono::seconds(1));
  return Status::Ok();
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void KeelServeWatch(
    const WatchServerOptions& options, WatchSource& source, std::string_view page,
    const std::function<void(int port)>& listening, Status* status) {
  *status = Serve(options, source, page, listening);
}

}  // namespace keel::tools
