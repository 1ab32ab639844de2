// keel watch: a run while it goes on, in a terminal or as a page.

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "common/files/file_system.h"
#include "common/process/signal_handler.h"
#include "common/terminal.h"
#include "parallel/launch_env.h"
#include "tools/command.h"
#include "tools/number_check.h"
#include "tools/watch/watch_frame.h"
#include "tools/watch/watch_page.h"
#include "tools/watch/watch_screen.h"
#include "tools/watch/watch_server.h"
#include "tools/watch/watch_state.h"
#include "trainer/metrics/prometheus_file.h"

namespace keel::tools {

namespace {

struct WatchArguments {
  std::string folder;
  bool once = false;
  std::string http;
  double interval_s = 1;
  std::chrono::milliseconds period() const {
    return std::chrono::milliseconds(static_cast<int64_t>(interval_s * 1000));
  }
};

// Of lines that no terminal cuts.
constexpr int kPlainColumns = 100;

// False, with errno: it could not be written.
bool Print(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() &&
         std::fflush(stdout) == 0;
}

std::vector<std::string> PlainFrame(const WatchState& state) {
  const int columns = TerminalColumns(STDOUT_FILENO);
  return WatchFrame(state, columns > 0 ? columns : kPlainColumns, 0);
}

// What has changed, but for the ages of things, which always do.
std::string Digest(const WatchState& state) {
  std::string text = fmt::format("{} {} {} {}", static_cast<int>(state.writer.kind),
                                 state.run->steps, state.kept, state.run->checkpoints.size());
  for (const auto& [name, points] : state.run->metrics) text += fmt::format(" {}", points.size());
  for (const SaveInFlight& save : state.saves) text += fmt::format(" s{}", save.step);
  return text;
}

void WatchPlainly(WatchedRun& run, const WatchArguments& a) {
  const std::atomic<bool>& stop = WatchStop();
  IgnoreBrokenPipes();
  std::string shown;
  while (!stop) {
    ThrowIfError(run.Look());
    if (std::string digest = Digest(run.state()); digest != shown) {
      auto lines = PlainFrame(run.state());
      if (!shown.empty()) lines.insert(lines.begin(), "");
      if (!Print(lines)) {
        if (errno == EPIPE) return;  // whoever read it has seen enough
        throw Error(Status::FromErrno(errno, "write", "standard output"));
      }
      shown = std::move(digest);
    }
    const auto end = std::chrono::steady_clock::now() + a.period();
    while (!stop && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

void WatchInTerminal(WatchedRun& run, const WatchArguments& a) {
  WatchScreen screen;
  do {
    ThrowIfError(run.Look());
    // The last line is for the keys; in the last column terminals wait before they go on.
    const int columns = std::max(1, screen.columns() - 1);
    auto lines = WatchFrame(run.state(), columns, std::max(1, screen.rows() - 1));
    if (screen.rows() > 1) lines.push_back(FitColumns("q leaves", columns));
    ThrowIfError(screen.Draw(lines));
  } while (screen.Wait(a.period()));
}

class RunSource final : public WatchSource {
 public:
  RunSource(WatchedRun& run, std::string folder) : run_(run), folder_(std::move(folder)) {}
  bool Look() override {
    const Status status = run_.Look();
    std::string digest = status.ok() ? Digest(run_.state()) : status.message();
    // Ages change all the time; every few seconds is enough for them.
    const auto now = std::chrono::steady_clock::now();
    if (digest == digest_ && now - told_ < std::chrono::seconds(5)) return false;
    digest_ = std::move(digest);
    told_ = now;
    return true;
  }
  std::string Answer(int64_t version) override { return WatchAnswer(run_.state(), version); }
  std::optional<std::string> Metrics() const override {
    const auto fs = OpenPosixFileSystem(folder_, false);
    if (!fs.ok()) return std::nullopt;
    Result<std::string> text = ReadFile(**fs, trainer::PrometheusFile::kName, kMostMetricsBytes);
    return text.ok() ? std::optional(std::move(text).value()) : std::nullopt;
  }

 private:
  static constexpr int64_t kMostMetricsBytes = int64_t{16} << 20;
  WatchedRun& run_;
  const std::string folder_;
  std::string digest_;
  std::chrono::steady_clock::time_point told_;
};

// "8080", "HOST:8080", "[::1]:8080".
WatchServerOptions AddressOf(const std::string& text) {
  WatchServerOptions options;
  std::string port = text;
  if (const size_t colon = text.rfind(':'); colon != std::string::npos) {
    options.host = text.substr(0, colon);
    port = text.substr(colon + 1);
    if (options.host.starts_with('[') && options.host.ends_with(']'))
      options.host = options.host.substr(1, options.host.size() - 2);
  }
  const bool number = !port.empty() && port.size() <= 5 &&
                      port.find_first_not_of("0123456789") == std::string::npos;
  options.port = number ? std::stoi(port) : -1;
  if (options.port < 0 || options.port > 65535 || options.host.empty()) {
    throw Error(StatusCode::kUsage,
                fmt::format("--http {}: expected PORT or HOST:PORT, such as 8080 or "
                            "127.0.0.1:8080; 0 is a port that is free",
                            text));
  }
  options.key = parallel::ProcessEnvironment()("KEEL_API_KEY").value_or("");
  const bool alone =
      options.host == "localhost" || options.host == "::1" || options.host.starts_with("127.");
  if (!alone && options.key.empty()) {
    throw Error(StatusCode::kUsage,
                fmt::format("--http {}: others can reach {}: set KEEL_API_KEY, which the page "
                            "then asks for, or listen at 127.0.0.1, and forward the port with ssh",
                            text, options.host));
  }
  return options;
}

void WatchOverHttp(WatchedRun& run, const WatchArguments& a) {
  WatchServerOptions options = AddressOf(a.http);
  options.period = a.period();
  options.stop = &WatchStop();
  RunSource source(run, a.folder);
  ThrowIfError(ServeWatch(options, source, [&](int port) {
    fmt::print(
        "watching {} at http://{}:{}/\n", a.folder,
        options.host.find(':') == std::string::npos ? options.host : "[" + options.host + "]",
        port);
    std::fflush(stdout);
  }));
}

void Watch(const WatchArguments& a) {
  WatchedRun run(a.folder);
  if (!a.http.empty()) return WatchOverHttp(run, a);
  if (a.once) {
    ThrowIfError(run.Look());
    if (!run.state().begun && ::access(a.folder.c_str(), F_OK) != 0) {
      throw Error(StatusCode::kNotFound, a.folder +
                                             ": there is no such folder; expected that of a run "
                                             "(trainer.default_local_dir)");
    }
    (void)Print(PlainFrame(run.state()));  // what could not be written, main says
    return;
  }
  if (::isatty(STDIN_FILENO) == 1 && TerminalColumns(STDOUT_FILENO) > 0)
    return WatchInTerminal(run, a);
  WatchPlainly(run, a);
}

}  // namespace

void AddWatchCommand(CLI::App& app, CommandContext& context) {
  auto a = std::make_shared<WatchArguments>();
  CLI::App* watch =
      app.add_subcommand("watch", "A run while it goes on, in a terminal or as a page");
  watch->add_option("RUN", a->folder, "Its folder (trainer.default_local_dir); it may come later")
      ->required();
  auto* const once = watch->add_flag("--once", a->once, "Print what there is, and leave");
  watch
      ->add_option("--http", a->http,
                   "[HOST:]PORT: as a page that keeps itself up to date (127.0.0.1)")
      ->excludes(once);
  watch->add_option("--interval", a->interval_s, "Seconds from one look to the next (1)")
      ->check(CLI::Range(0.05, 3600.0));
  watch->footer(
      "Examples:\n"
      "  keel watch runs/quickstart\n"
      "  keel watch runs/quickstart --once\n"
      "  keel watch runs/quickstart --http 8080");
  watch->callback([a, &context] {
    context.prints_progress = !a->once;
    Watch(*a);
  });
}

}  // namespace keel::tools
