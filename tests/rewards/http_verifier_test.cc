// A verifier behind an address that answers, redirects, hangs and lies; proxies and TLS.

#include "rewards/http_verifier.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>
#include <utility>

#include "common/programs/http_client.h"
#include "rewards/verifier_factory.h"
#include "tests/rewards/samples.h"

namespace keel::rewards {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Whether the other end still takes bytes.
using Send = std::function<bool(const std::string&)>;

enum class Connections { kClosed, kKept };

// Answers the request of each connection with the bytes that `answer` makes of it, or sends itself;
// "" hangs up. kKept: and the requests that follow it.
class Server {
 public:
  explicit Server(std::function<std::string(const std::string&)> answer,
                  Connections connections = Connections::kClosed, int port = 0)
      : Server([answer](const std::string& request, const Send& send) { send(answer(request)); },
               connections, port) {}
  explicit Server(std::function<void(const std::string&, const Send&)> answer,
                  Connections connections = Connections::kClosed, int port = 0)
      : answer_(answer), kept_(connections == Connections::kKept) {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    const int again = 1;
    setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &again, sizeof again);
    bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address);
    listen(listener_, 8);
    socklen_t size = sizeof address;
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Serve(); });
  }
  ~Server() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  // "127.0.0.1:<port>"
  std::string host() const { return fmt::format("127.0.0.1:{}", port_); }
  HttpOptions address() const { return {fmt::format("http://{}/verify", host()), ""}; }
  int port() const { return port_; }
  int requests() const { return requests_; }

 private:
  void Serve() {
    while (true) {
      const int connection = accept(listener_, nullptr, nullptr);
      if (connection < 0) return;
      ++requests_;
      std::string request = Read(connection);
      while (Answered(connection, request) && kept_ && !(request = Read(connection)).empty())
        ++requests_;
      close(connection);
    }
  }
  static std::string Read(int connection) {
    std::string request;
    char buffer[4096];
    size_t whole = std::string::npos;
    while (request.size() < whole) {
      const ssize_t got = recv(connection, buffer, sizeof buffer, 0);
      if (got <= 0) break;
      request.append(buffer, static_cast<size_t>(got));
      const size_t head = request.find("\r\n\r\n");
      const size_t length = request.find("Content-Length: ");
      if (head == std::string::npos) continue;
      whole = head + 4;
      if (length != std::string::npos) whole += std::stoul(request.substr(length + 16));
    }
    return request;
  }
  bool Answered(int connection, const std::string& request) {
    bool sent = false;
    answer_(request, [&](const std::string& text) {
      sent = !text.empty();
      return send(connection, text.data(), text.size(), MSG_NOSIGNAL) >= 0;
    });
    return sent;
  }
  std::function<void(const std::string&, const Send&)> answer_;
  const bool kept_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<int> requests_{0};
  std::thread thread_;
};

std::string Answer(const std::string& request) {
  const Json body = Json::parse(request.substr(request.find("\r\n\r\n") + 4));
  Json results = Json::array();
  for (const Json& sample : body["samples"])
    results.push_back({{"id", sample["id"]}, {"score", sample["ground_truth"]}});
  return Json({{"results", results}}).dump();
}

std::string Ok(const std::string& body) {
  return "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

// Without the proxies of the machine that the test runs on.
class HttpVerifierTest : public ::testing::Test {
 protected:
  HttpVerifierTest() {
    for (const char* name : {"http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"})
      unsetenv(name);
  }
};

TEST_F(HttpVerifierTest, ScoresHoweverTheBodyIsFramed) {
  using Frame = std::function<std::string(const std::string&)>;
  for (const Frame& frame : std::vector<Frame>{
           Ok, [](const std::string& body) { return "HTTP/1.0 200 OK\r\n\r\n" + body; },
           [](const std::string& body) {
             return "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: "
                    "Chunked\r\n\r\n3;x=y\r\n" +
                    body.substr(0, 3) + "\r\n" + fmt::format("{:x}", body.size() - 3) + "\r\n" +
                    body.substr(3) + "\r\n0\r\n\r\n";
           }}) {
    const Server server([&](const std::string& request) {
      EXPECT_EQ(request.rfind("POST /verify HTTP/1.1\r\n", 0), 0u);
      return frame(Answer(request));
    });
    HttpVerifier verifier(server.address(), Quick());
    const auto results = verifier.Verify(Samples(6));
    EXPECT_EQ(server.requests(), 2);  // batches of 4
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].error, "");
      EXPECT_EQ(results[i].score, static_cast<double>(i));
    }
  }
}

TEST_F(HttpVerifierTest, ATokenOfTheEnvironmentIsSentAndNeverShown) {
  const Server server([](const std::string& request) {
    if (request.find("Authorization: Bearer s3cret-T0ken\r\n") != std::string::npos)
      return Ok(Answer(request));
    const std::string body = "not you, but s3cret-T0ken";
    return "HTTP/1.1 401 No\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  });
  RewardSection reward;
  reward.type = RewardType::kHttp;
  reward.url = server.address().url;
  reward.bearer_token_env = "KEEL_TEST_TOKEN";
  const auto refusal = [&] { return MakeVerifierFactory(reward).status().message(); };
  unsetenv("KEEL_TEST_TOKEN");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("reward.bearer_token_env: KEEL_TEST_TOKEN"),
                               HasSubstr("not set in the environment")));
  setenv("KEEL_TEST_TOKEN", "two words", 1);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("what no token has"), Not(HasSubstr("words"))));
  setenv("KEEL_TEST_TOKEN", "s3cret-T0ken", 1);
  auto verifier = ValueOrThrow(MakeVerifierFactory(reward))();
  for (const auto& result : verifier->Verify(Samples(3))) EXPECT_EQ(result.error, "");
  // Another one is refused, and what the service says of ours is not passed on.
  setenv("KEEL_TEST_TOKEN", "s3cret-T0ken", 1);
  HttpOptions echoed = server.address();
  echoed.bearer_token = "T0ken";
  const auto results = HttpVerifier(echoed, Quick()).Verify(Samples(1));
  EXPECT_THAT(results[0].error,
              AllOf(HasSubstr("status 401"), HasSubstr("s3cret-(token)"), Not(HasSubstr("T0ken"))));
  // In clear over a network, or beside another secret.
  reward.url = "http://judge.example/verify";
  EXPECT_THAT(refusal(), AllOf(HasSubstr("in clear"), HasSubstr("judge.example")));
  reward.url = "https://me:word@judge.example/verify";
  EXPECT_THAT(refusal(), AllOf(HasSubstr("give one of them"), Not(HasSubstr("word@"))));
  reward.url = "https://judge.example/verify";
  EXPECT_EQ(refusal(), "");
  unsetenv("KEEL_TEST_TOKEN");
}

TEST_F(HttpVerifierTest, ATokenGoesToNoHostThatItIsRedirectedTo) {
  std::string seen;
  const Server other([&](const std::string& request) {
    seen = request;
    return Ok(Answer(request));
  });
  const Server server([&](const std::string&) {
    return fmt::format("HTTP/1.1 307 Go\r\nLocation: http://{}/\r\nContent-Length: 0\r\n\r\n",
                       other.host());
  });
  HttpOptions options = server.address();
  options.bearer_token = "s3cret";
  const auto results = HttpVerifier(options, Quick()).Verify(Samples(1));
  EXPECT_EQ(results[0].error, "");
  EXPECT_THAT(seen, AllOf(HasSubstr("POST / HTTP/1.1"), Not(HasSubstr("s3cret"))));
}

TEST_F(HttpVerifierTest, AScoreThatIsNoneCostsItsSampleAlone) {
  // The last two as Python's json writes them.
  for (const std::string none : {"null", "\"1\"", "true", "{}", "NaN", "-Infinity"}) {
    const Server server([&](const std::string& request) {
      Json answer = Json::parse(Answer(request));
      answer["results"][0]["beside"] = "none";
      answer["results"][1]["score"] = "none";
      std::string text = answer.dump();
      for (size_t at; (at = text.find("\"none\"")) != std::string::npos;) text.replace(at, 6, none);
      return Ok(text);
    });
    HttpVerifier verifier(server.address(), Quick());
    const std::vector<RewardResult> results = verifier.Verify(Samples(3));
    EXPECT_EQ(results[0].error, "");
    EXPECT_THAT(results[1].error, HasSubstr("score"));
    EXPECT_EQ(results[2].error, "");
    EXPECT_EQ(server.requests(), 1);
  }
}

TEST_F(HttpVerifierTest, ErrorsAreNoScores) {
  const auto error = [](const std::function<std::string(const std::string&)>& answer, int timeout) {
    const Server server(answer);
    HttpVerifier verifier(server.address(), Quick(0, timeout));
    return verifier.Verify(Samples(1))[0].error;
  };
  EXPECT_THAT(
      error([](auto&) { return "HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nlate"; }, 9000),
      HasSubstr("status 503: late"));
  EXPECT_THAT(error([](auto&) { return "SSH-2.0-x\r\n\r\n"; }, 9000),
              HasSubstr("HTTP/0.9 when not allowed"));
  EXPECT_THAT(error([](auto&) { return ""; }, 9000), HasSubstr("Empty reply from server"));
  EXPECT_THAT(error([](auto&) { return "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"; }, 9000),
              HasSubstr("reading the answer: transfer closed with 7 bytes remaining"));
  EXPECT_THAT(error([](auto&) { return Ok("{}"); }, 9000), HasSubstr("expected {\"results\""));
  EXPECT_THAT(error([](auto&) { return Ok("{\"results\": [{\"id\": 1e999}]}"); }, 9000),
              HasSubstr("reward.url's answer"));
  EXPECT_THAT(error([](auto&) { return Ok("{\"results\": []}"); }, 9000), HasSubstr("no result"));
  const auto of_others = [](const char* more) {
    return [more](const std::string& request) {
      const std::string mine = Answer(request);
      return Ok(mine.substr(0, mine.size() - 2) + more + "]}");
    };
  };
  EXPECT_EQ(error(of_others(""), 9000), "");
  EXPECT_THAT(error(of_others(",{\"id\":0,\"score\":5}"), 9000), HasSubstr("id 0, which was not"));
  EXPECT_THAT(error(of_others(",{\"id\":99,\"score\":5}"), 9000),
              HasSubstr("id 99, which was not"));
  EXPECT_THAT(error(
                  [](auto&) {
                    std::this_thread::sleep_for(milliseconds(3000));
                    return "HTTP/1.1 200 OK\r\n\r\n";
                  },
                  1500),
              AllOf(HasSubstr("reward.timeout_seconds"), HasSubstr("waiting for the answer")));
  HttpVerifier nobody({"http://127.0.0.1:1/", ""}, Quick());
  EXPECT_EQ(nobody.Start().code(), StatusCode::kConfig);
  EXPECT_THAT(nobody.Start().message(), HasSubstr("http://127.0.0.1:1/"));
  EXPECT_THAT(nobody.Start().message(), HasSubstr("connecting"));
  EXPECT_THAT(nobody.Start().message(), HasSubstr("Connection refused"));
  EXPECT_THAT(nobody.Start().message(), HasSubstr("start the service"));
  const Server somebody([](auto&) { return ""; });
  EXPECT_TRUE(HttpVerifier(somebody.address(), Quick()).Start().ok());
  EXPECT_THAT(nobody.Verify(Samples(1))[0].error, HasSubstr("127.0.0.1:1"));
}

TEST_F(HttpVerifierTest, RetriesAFailedRequest) {
  int calls = 0;
  const Server server([&](const std::string& request) {
    return ++calls == 1 ? std::string("HTTP/1.1 500 No\r\n\r\n") : Ok(Answer(request));
  });
  HttpVerifier verifier(server.address(), Quick(1));
  EXPECT_EQ(verifier.Verify(Samples(2))[1].score, 1);
}

// It is not there for a moment; the second try waits for it.
TEST_F(HttpVerifierTest, AServiceThatIsStartedAgainCostsNothing) {
  const auto answer = [](const std::string& request) { return Ok(Answer(request)); };
  auto server = std::make_unique<Server>(answer);
  const int port = server->port();
  HttpVerifier verifier(server->address(), {16, milliseconds(10'000), 2});
  server.reset();
  std::thread starts([&] {
    std::this_thread::sleep_for(milliseconds(300));
    server = std::make_unique<Server>(answer, Connections::kClosed, port);
  });
  const auto results = verifier.Verify(Samples(1));
  starts.join();
  EXPECT_EQ(results[0].error, "");
  // Of one that does not come no try takes longer than its time.
  server.reset();
  HttpVerifier hasty({fmt::format("http://127.0.0.1:{}/", port), ""}, {16, milliseconds(100), 2});
  const auto begin = std::chrono::steady_clock::now();
  const auto failed = hasty.Verify(Samples(1));
  EXPECT_TRUE(failed[0].gone);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(5'000));
}

TEST_F(HttpVerifierTest, Addresses) {
  for (const char* good :
       {"http://host", "http://[::1]:8080/a/b?c", "https://u:p@host/", "HTTP://h"})
    EXPECT_TRUE(CheckHttpUrl(good).ok()) << good;
  for (const char* bad :
       {"", "host", "ftp://host", "file:///etc/passwd", "http://", "http://h:70000", "http://h:8x",
        "http://[::1", "http://a b/", "http://h/\r\nX: y"})
    EXPECT_EQ(CheckHttpUrl(bad).code(), StatusCode::kConfig) << bad;
  EXPECT_THAT(CheckHttpUrl("http://user:sesame@host:x").message(), Not(HasSubstr("sesame")));
}

TEST_F(HttpVerifierTest, TheAddressesSecretsStandInNoMessage) {
  const Server server([](const std::string& request) {
    EXPECT_THAT(request, HasSubstr("Authorization: Basic dXNlcjpzZXNhbWU="));  // user:sesame
    EXPECT_THAT(request, HasSubstr("?token=hidden"));
    return "HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nlate";
  });
  const auto secret = [](const std::string& host) {
    return HttpOptions{"http://user:sesame@" + host + "/verify?token=hidden", ""};
  };
  const std::string busy = HttpVerifier(secret(server.host()), Quick()).Verify(Samples(1))[0].error;
  const std::string nobody = HttpVerifier(secret("127.0.0.1:1"), Quick()).Start().message();
  EXPECT_THAT(busy, HasSubstr("http://" + server.host() + "/verify: status 503"));
  EXPECT_THAT(nobody, HasSubstr("http://127.0.0.1:1/verify: connecting"));
  for (const std::string& text : {busy, nobody})
    EXPECT_THAT(text, AllOf(Not(HasSubstr("sesame")), Not(HasSubstr("hidden"))));
}

// What a first server answers to the verifier of which the second is the service.
std::string Redirected(const std::function<std::string(const std::string&)>& answer) {
  const Server service([](const std::string& request) {
    return request.rfind("POST /new HTTP/1.1\r\n", 0) == 0 ? Ok(Answer(request)) : "odd";
  });
  const Server old([&](const std::string&) { return answer(service.host()); });
  const RewardResult result = HttpVerifier(old.address(), Quick()).Verify(Samples(2))[1];
  return result.ok() ? fmt::format("scored {}", result.score) : result.error;
}

TEST_F(HttpVerifierTest, RedirectsAreFollowedWithinBounds) {
  for (const int status : {301, 302, 307, 308}) {
    EXPECT_EQ(Redirected([&](const std::string& host) {
                return fmt::format("HTTP/1.1 {} Go\r\nLocation: http://{}/new\r\n\r\n", status,
                                   host);
              }),
              "scored 1")
        << status;
  }
  EXPECT_THAT(
      Redirected([](auto&) { return "HTTP/1.1 307 Go\r\nLocation: file:///etc/passwd\r\n\r\n"; }),
      HasSubstr("Protocol \"file\" not supported"));
  EXPECT_THAT(Redirected([](auto&) { return "HTTP/1.1 307 Go\r\nLocation: /again\r\n\r\n"; }),
              AllOf(HasSubstr("redirected"), HasSubstr("Maximum (5) redirects followed")));
}

TEST_F(HttpVerifierTest, AnEndlessBodyIsCutOff) {
  const Server server([](const std::string&, const Send& send) {
    if (!send("HTTP/1.1 200 OK\r\n\r\n")) return;
    while (send(std::string(1 << 20, 'x'))) {
    }
  });
  EXPECT_THAT(HttpVerifier(server.address(), Quick()).Verify(Samples(1))[0].error,
              HasSubstr("an answer of more than 67108864 bytes"));
}

// Each byte comes soon; the whole would take for ever.
TEST_F(HttpVerifierTest, ASlowBodyEndsWithItsTry) {
  const Server server([](const std::string&, const Send& send) {
    if (!send("HTTP/1.1 200 OK\r\n\r\n")) return;
    while (send("x")) std::this_thread::sleep_for(milliseconds(10));
  });
  HttpVerifier verifier(server.address(), Quick(1, 1500));
  EXPECT_THAT(verifier.Verify(Samples(1))[0].error,
              AllOf(HasSubstr("reading the answer"), HasSubstr("reward.timeout_seconds"),
                    HasSubstr("(2 tries)")));
  EXPECT_EQ(server.requests(), 2);
}

TEST_F(HttpVerifierTest, ARequestThatIsCancelledEndsLongBeforeItsLimit) {
  std::atomic<bool> over{false};
  const Server server([&](const std::string&, const Send&) {
    while (!over) std::this_thread::sleep_for(milliseconds(10));
  });
  HttpVerifier verifier(server.address(), {.timeout = std::chrono::hours(1), .max_retries = 3});
  std::thread other([&] {
    while (server.requests() == 0) std::this_thread::sleep_for(milliseconds(10));
    std::this_thread::sleep_for(milliseconds(200));  // the client knows, too, that all is sent
    verifier.Cancel();
  });
  EXPECT_THAT(verifier.Verify(Samples(1))[0].error, HasSubstr("waiting for the answer"));
  other.join();
  over = true;
  EXPECT_EQ(server.requests(), 1);
}

// A connection that the service closed after an answer is opened again; nothing is counted a
// failure.
TEST_F(HttpVerifierTest, AClosedConnectionIsOpenedAgain) {
  const Server server([](const std::string& request) {
    return "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: " +
           std::to_string(Answer(request).size()) + "\r\n\r\n" + Answer(request);
  });
  HttpVerifier verifier(server.address(), Quick());
  for (int round = 0; round < 3; ++round) EXPECT_EQ(verifier.Verify(Samples(2))[1].error, "");
  EXPECT_EQ(server.requests(), 3);
}

// The service dies once it has acted on a request, over a connection that was used before.
TEST_F(HttpVerifierTest, ARequestThatIsToBeSentOnceIsNotSentAgainByTheLibrary) {
  const auto later = [] { return std::chrono::steady_clock::now() + std::chrono::seconds(20); };
  for (const bool once : {false, true}) {
    bool died = false;
    const Server service(
        [&](const std::string& request) {
          if (request.ends_with("second") && !std::exchange(died, true)) return std::string();
          return Ok("{}");
        },
        Connections::kKept);
    HttpOptions options = service.address();
    options.once = once;
    HttpClient client(options);
    EXPECT_TRUE(client.Post("first", later()).ok());
    EXPECT_EQ(client.Post("second", later()).ok(), !once);
    EXPECT_EQ(service.requests(), once ? 2 : 3);
  }
}

TEST_F(HttpVerifierTest, AsksAProxyOfTheEnvironment) {
  std::string first;
  const Server proxy([&](const std::string& request) {
    if (request.empty()) return std::string();  // Start only connects
    first = request.substr(0, request.find("\r\n"));
    return Ok(Answer(request));
  });
  setenv("http_proxy", ("http://" + proxy.host()).c_str(), 1);
  HttpVerifier verifier({"http://verifier.invalid/verify", ""}, Quick());
  EXPECT_TRUE(verifier.Start().ok());
  EXPECT_EQ(verifier.Verify(Samples(2))[1].score, 1);
  EXPECT_EQ(first, "POST http://verifier.invalid/verify HTTP/1.1");
  unsetenv("http_proxy");
  EXPECT_THAT(verifier.Verify(Samples(1))[0].error, HasSubstr("looking up the host"));
}

// A service with a certificate of its own, in a process of Python's.
class SecureService {
 public:
  explicit SecureService(const std::string& folder) : certificate_(folder + "/certificate.pem") {
    const std::string key = folder + "/key.pem";
    const std::string make =
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 "
        "-subj /CN=verifier -addext subjectAltName=IP:127.0.0.1 -keyout " +
        key + " -out " + certificate_ + " 2>/dev/null";
    EXPECT_EQ(std::system(make.c_str()), 0) << make;
    std::ofstream(folder + "/service.py") << R"(
import http.server, json, os, ssl, sys
class Service(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        samples = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["samples"]
        body = json.dumps({"results": [{"id": s["id"], "score": s["ground_truth"]} for s in samples]}).encode()
        if self.path == "/plain":
            self.send_response(307)
            self.send_header("Location", "http://127.0.0.1:1/")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *rest):
        pass
server = http.server.HTTPServer(("127.0.0.1", 0), Service)
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
tls.load_cert_chain(sys.argv[1], sys.argv[2])
server.socket = tls.wrap_socket(server.socket, server_side=True)
print(os.getpid(), server.server_port, flush=True)
server.serve_forever()
)";
    process_ = popen(
        fmt::format("exec {} {}/service.py {} {}", Python(), folder, certificate_, key).c_str(),
        "r");
    EXPECT_EQ(std::fscanf(process_, "%d %d", &pid_, &port_), 2);
  }
  ~SecureService() {
    if (pid_ > 0) kill(pid_, SIGKILL);
    pclose(process_);
  }
  HttpOptions At(const std::string& path, bool trusted) const {
    return {fmt::format("https://127.0.0.1:{}{}", port_, path), trusted ? certificate_ : ""};
  }

 private:
  std::string certificate_;
  FILE* process_ = nullptr;
  int pid_ = 0, port_ = 0;
};

TEST_F(HttpVerifierTest, TlsTrustsTheSystemOrTheFileThatIsGiven) {
  const std::string folder = ::testing::TempDir() + "keel_https_" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  {
    const SecureService service(folder);
    HttpVerifier refused(service.At("/verify", false), Quick());
    const Status started = refused.Start();
    EXPECT_EQ(started.code(), StatusCode::kConfig);
    EXPECT_THAT(started.message(), AllOf(HasSubstr("connecting: SSL"), HasSubstr("certificate"),
                                         HasSubstr("reward.ca_file")));
    EXPECT_THAT(refused.Verify(Samples(1))[0].error, HasSubstr("certificate"));

    HttpVerifier trusted(service.At("/verify", true), Quick());
    EXPECT_TRUE(trusted.Start().ok());
    EXPECT_EQ(trusted.Verify(Samples(2))[1].score, 1);
    HttpVerifier downgraded(service.At("/plain", true), Quick());
    EXPECT_THAT(downgraded.Verify(Samples(1))[0].error,
                HasSubstr("Protocol \"http\" not supported"));

    HttpVerifier nothing({service.At("/verify", true).url, folder + "/none.pem"}, Quick());
    EXPECT_THAT(nothing.Start().message(), HasSubstr(folder + "/none.pem"));
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace keel::rewards
