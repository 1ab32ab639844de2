#include "common/programs/http_client.h"

#include <curl/curl.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "common/text.h"

namespace keel {

namespace {

constexpr size_t kMaxHttpAnswer = size_t{64} << 20;
constexpr long kMaxRedirects = 5;
constexpr int64_t kConnectMilliseconds = 30'000;
static_assert(std::is_same_v<CURL, void>);

template <typename T>
void Set(CURL* handle, CURLoption option, T value) {
  const CURLcode code = curl_easy_setopt(handle, option, value);
  if (code != CURLE_OK)
    throw Error(StatusCode::kInternal, fmt::format("libcurl: {}", curl_easy_strerror(code)));
}

template <typename T>
T Get(CURL* handle, CURLINFO info) {
  T value{};
  curl_easy_getinfo(handle, info, &value);
  return value;
}

using Url = std::unique_ptr<CURLU, void (*)(CURLU*)>;

std::string PartOf(const Url& url, CURLUPart part) {
  char* text = nullptr;
  if (curl_url_get(url.get(), part, &text, 0) != CURLUE_OK) return "";
  const std::unique_ptr<char, void (*)(void*)> owner(text, curl_free);
  return text;
}

// The address without its user, password and query, which may be secrets.
std::string PublicName(const char* text) {
  const Url url(curl_url(), curl_url_cleanup);
  if (text == nullptr || curl_url_set(url.get(), CURLUPART_URL, text, 0) != CURLUE_OK)
    return "the address";
  const std::string port = PartOf(url, CURLUPART_PORT);
  return fmt::format("{}://{}{}{}", PartOf(url, CURLUPART_SCHEME), PartOf(url, CURLUPART_HOST),
                     port.empty() ? "" : ":" + port, PartOf(url, CURLUPART_PATH));
}

// How far a request got. Its times are 0 for what it did not finish; those of several requests, one
// redirected to the next, are added up.
const char* PhaseOf(CURL* handle) {
  const auto done = [&](CURLINFO time) { return Get<curl_off_t>(handle, time) > 0; };
  if (Get<long>(handle, CURLINFO_REDIRECT_COUNT) > 0) return "redirected";
  if (!done(CURLINFO_NAMELOOKUP_TIME_T)) return "looking up the host";
  if (!done(CURLINFO_PRETRANSFER_TIME_T)) return "connecting";
  return done(CURLINFO_STARTTRANSFER_TIME_T) ? "reading the answer" : "waiting for the answer";
}

Status Failed(CURL* handle, CURLcode code, const std::string& problem, const std::string& keys) {
  std::string text =
      fmt::format("{}: {}: {}", PublicName(Get<char*>(handle, CURLINFO_EFFECTIVE_URL)),
                  PhaseOf(handle), problem.empty() ? curl_easy_strerror(code) : problem);
  switch (code) {
    case CURLE_OPERATION_TIMEDOUT:
      return Status(StatusCode::kDeadlineExceeded,
                    text + fmt::format(" ({}timeout_seconds)", keys));
    case CURLE_ABORTED_BY_CALLBACK:
      return Status(StatusCode::kCancelled, text);
    case CURLE_WRITE_ERROR:
      text += fmt::format(": an answer of more than {} bytes", kMaxHttpAnswer);
      [[fallthrough]];
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_WEIRD_SERVER_REPLY:
      return Status(StatusCode::kInvalidData, text);
    case CURLE_PEER_FAILED_VERIFICATION:
      return Status(StatusCode::kUnavailable,
                    text + fmt::format(" ({}ca_file names whom to trust)", keys));
    default: {
      const auto error = static_cast<int>(Get<long>(handle, CURLINFO_OS_ERRNO));
      if (error != 0) text += fmt::format(": {}", std::strerror(error));
      return Status(StatusCode::kUnavailable, text);
    }
  }
}

size_t TakeBytes(const char* bytes, size_t size, size_t count, void* answer) {
  auto* text = static_cast<std::string*>(answer);
  if (text->size() + size * count > kMaxHttpAnswer) return 0;
  try {
    text->append(bytes, size * count);
  } catch (const std::exception&) {  // libcurl is C: nothing is thrown through it
    return 0;
  }
  return size * count;
}

// Asked by libcurl when bytes move, and about once a second when none do.
int IsCancelled(void* cancelled, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return static_cast<const std::atomic<bool>*>(cancelled)->load() ? 1 : 0;
}

// Programs that this process starts do not inherit the connection.
curl_socket_t OpenSocket(void*, curlsocktype, curl_sockaddr* address) {
  return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

}  // namespace

Status CheckHttpUrl(const std::string& text, std::string_view key) {
  const Url url(curl_url(), curl_url_cleanup);
  const CURLUcode code = curl_url_set(url.get(), CURLUPART_URL, text.c_str(), 0);
  const std::string scheme = PartOf(url, CURLUPART_SCHEME);
  if (code == CURLUE_OK && (scheme == "http" || scheme == "https")) return Status::Ok();
  // What cannot be taken apart is not repeated: nobody can tell what of it is a password.
  return Status(StatusCode::kConfig,
                fmt::format("{}: {}: expected http://host[:port][/path], or https://", key,
                            code == CURLUE_OK ? scheme + " is neither http nor https"
                                              : std::string(curl_url_strerror(code))));
}

Status CheckTokenAddress(const std::string& text, std::string_view key) {
  const Url url(curl_url(), curl_url_cleanup);
  if (curl_url_set(url.get(), CURLUPART_URL, text.c_str(), 0) != CURLUE_OK) return Status::Ok();
  const std::string host = PartOf(url, CURLUPART_HOST);
  const bool here = host == "localhost" || host == "127.0.0.1" || host == "[::1]";
  if (PartOf(url, CURLUPART_SCHEME) != "https" && !here) {
    return Status(StatusCode::kConfig,
                  fmt::format("{}: {}: a bearer token would go over the network in clear; expected "
                              "an https address",
                              key, PublicName(text.c_str())));
  }
  if (PartOf(url, CURLUPART_USER).empty()) return Status::Ok();
  return Status(StatusCode::kConfig,
                fmt::format("{}: {}: has a user's name beside a bearer token: give one of them",
                            key, PublicName(text.c_str())));
}

HttpClient::HttpClient(const HttpOptions& options)
    : keys_(options.keys),
      token_(options.bearer_token),
      handle_(curl_easy_init(), curl_easy_cleanup),
      headers_(nullptr, curl_slist_free_all) {
  if (handle_ == nullptr) throw Error(StatusCode::kInternal, "libcurl cannot be started");
  // A service is not asked whether it wants a long body: those that do not answer cost a second.
  for (const char* line : {"Content-Type: application/json", "Expect:"})
    headers_.reset(curl_slist_append(headers_.release(), line));
  problem_.resize(CURL_ERROR_SIZE);
  CURL* const handle = handle_.get();
  const bool secure = PublicName(options.url.c_str()).starts_with("https:");
  Set(handle, CURLOPT_URL, options.url.c_str());
  Set(handle, CURLOPT_NOSIGNAL, 1L);
  Set(handle, CURLOPT_PROTOCOLS_STR, "http,https");
  Set(handle, CURLOPT_REDIR_PROTOCOLS_STR, secure ? "https" : "http,https");
  Set(handle, CURLOPT_FOLLOWLOCATION, 1L);
  Set(handle, CURLOPT_MAXREDIRS, kMaxRedirects);
  Set(handle, CURLOPT_POSTREDIR, long{CURL_REDIR_POST_301 | CURL_REDIR_POST_302});
  Set(handle, CURLOPT_HTTPHEADER, headers_.get());
  Set(handle, CURLOPT_ERRORBUFFER, problem_.data());
  Set(handle, CURLOPT_WRITEFUNCTION, &TakeBytes);
  Set(handle, CURLOPT_OPENSOCKETFUNCTION, &OpenSocket);
  Set(handle, CURLOPT_NOPROGRESS, 0L);
  Set(handle, CURLOPT_XFERINFOFUNCTION, &IsCancelled);
  Set(handle, CURLOPT_XFERINFODATA, &cancelled_);
  if (options.once) Set(handle, CURLOPT_FORBID_REUSE, 1L);
  if (!token_.empty()) {
    Set(handle, CURLOPT_HTTPAUTH, static_cast<long>(CURLAUTH_BEARER));
    Set(handle, CURLOPT_XOAUTH2_BEARER, token_.c_str());
  }
  if (!options.ca_file.empty()) {
    Set(handle, CURLOPT_CAINFO, options.ca_file.c_str());
    Set<const char*>(handle, CURLOPT_CAPATH, nullptr);
  }
}

Status HttpClient::Perform(CURL* handle, Deadline deadline) {
  const int64_t left = std::chrono::duration_cast<std::chrono::milliseconds>(
                           deadline - std::chrono::steady_clock::now())
                           .count();
  // To libcurl 0 is no limit.
  Set(handle, CURLOPT_TIMEOUT_MS, static_cast<long>(std::max<int64_t>(1, left)));
  Set(handle, CURLOPT_CONNECTTIMEOUT_MS,
      static_cast<long>(std::clamp<int64_t>(left, 1, kConnectMilliseconds)));
  problem_.front() = '\0';
  const CURLcode code = curl_easy_perform(handle);
  return code == CURLE_OK ? Status::Ok() : Failed(handle, code, problem_.c_str(), keys_);
}

Status HttpClient::Connect(Deadline deadline) {
  const Handle handle(curl_easy_duphandle(handle_.get()), curl_easy_cleanup);
  Set(handle.get(), CURLOPT_CONNECT_ONLY, 1L);
  return Perform(handle.get(), deadline);
}

Result<std::string> HttpClient::Post(const std::string& body, Deadline deadline) {
  CURL* const handle = handle_.get();
  std::string answer;
  Set(handle, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
  Set(handle, CURLOPT_POSTFIELDS, body.data());
  Set(handle, CURLOPT_WRITEDATA, &answer);
  KEEL_RETURN_IF_ERROR(Perform(handle, deadline));
  const long status = Get<long>(handle, CURLINFO_RESPONSE_CODE);
  if (status == 200) return answer;
  // A service that shows the request that it refuses.
  for (size_t at = 0; !token_.empty() && (at = answer.find(token_, at)) != std::string::npos;)
    answer.replace(at, token_.size(), "(token)");
  return Status(
      StatusCode::kUnavailable,
      fmt::format("{}: status {}: {}", PublicName(Get<char*>(handle, CURLINFO_EFFECTIVE_URL)),
                  status, Printable(answer)));
}

}  // namespace keel
