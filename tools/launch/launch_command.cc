// keel launch: torchrun's flags; what follows them is a keel command, or any program after "--".

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <map>
#include <random>
#include <thread>

#include "tools/command.h"
#include "tools/launch/launcher.h"
#ifdef KEEL_WITH_TORCH
#include "parallel/store_server.h"
#endif

namespace keel::tools {

namespace {

#ifdef KEEL_WITH_TORCH
class TorchStoreHost final : public StoreHost {
 public:
  explicit TorchStoreHost(parallel::StoreServer server) : server_(std::move(server)) {}
  int port() const override { return server_.port(); }

 private:
  parallel::StoreServer server_;
};
#endif

Result<std::unique_ptr<StoreHost>> StartTorchStore(const std::string& host, int port) {
#ifdef KEEL_WITH_TORCH
  KEEL_ASSIGN_OR_RETURN(auto server, parallel::StoreServer::Start(host, port));
  return std::unique_ptr<StoreHost>(std::make_unique<TorchStoreHost>(std::move(server)));
#else
  static_cast<void>(host);
  static_cast<void>(port);
  return Status(StatusCode::kUnavailable, "this build has no torch, and so no store to host");
#endif
}

// Flag values by name without dashes, underscores as dashes; then what follows the flags.
struct Parsed {
  std::map<std::string, std::string> values;
  std::vector<std::string> rest;
  bool foreign = false;  // after "--": a program of its own
};

const std::map<std::string, std::string>& Flags() {
  static const std::map<std::string, std::string> flags = {
      {"nnodes", "Number of nodes (1)"},
      {"nproc-per-node", "Ranks per node: a number, cpu, gpu or auto (1)"},
      {"node-rank", "This node's rank (0)"},
      {"master-addr", "Host of node 0 (127.0.0.1)"},
      {"master-port", "Its port (any free one on one node, 29500 on several)"},
      {"rdzv-backend", "static or c10d; both mean the store of node 0's launcher"},
      {"rdzv-endpoint", "HOST:PORT, instead of the two above"},
      {"rdzv-id", "Id of the job"},
      {"max-restarts", "Restarts of all ranks after a failure (0)"},
      {"monitor-interval", "Accepted; ranks are watched all the time"},
      {"log-dir", "Folder for each rank's stdout.log, stderr.log and error.json"},
      {"redirects", "Output to --log-dir alone"},
      {"tee", "Output to --log-dir and, prefixed, here (as without it)"},
      {"local-ranks-filter", "Local ranks whose output is shown, such as 0,1"},
      {"role", "Name in ROLE_NAME (default)"},
      {"signals-to-handle", "Accepted; TERM, INT, HUP, QUIT, USR1 and USR2 are passed on"},
      {"shutdown-timeout", "Seconds ranks have to leave after a passed-on signal (30)"},
  };
  return flags;
}

const std::array<const char*, 3> kSwitches = {"standalone", "no-python", "run-path"};

Result<Parsed> ParseFlags(const std::vector<std::string>& arguments) {
  Parsed parsed;
  size_t i = 0;
  for (; i < arguments.size(); ++i) {
    std::string text = arguments[i];
    if (text == "--") {
      parsed.foreign = true;
      ++i;
      break;
    }
    if (text.empty() || text[0] != '-') break;
    if (text == "-r") text = "--redirects";
    if (text == "-t") text = "--tee";
    if (text.compare(0, 2, "--") != 0)
      return Status(StatusCode::kUsage, fmt::format("unknown flag {}", text));
    std::string name = text.substr(
        2, text.find('=') == std::string::npos ? std::string::npos : text.find('=') - 2);
    for (char& c : name) c = c == '_' ? '-' : c;
    bool is_switch = false;
    for (const char* known : kSwitches) is_switch = is_switch || name == known;
    if (is_switch) {
      parsed.values[name] = "1";
      continue;
    }
    if (!Flags().contains(name))
      return Status(StatusCode::kUsage,
                    fmt::format("unknown flag --{}; keel launch --help lists them", name));
    if (const size_t equals = text.find('='); equals != std::string::npos) {
      parsed.values[name] = text.substr(equals + 1);
    } else if (i + 1 < arguments.size()) {
      parsed.values[name] = arguments[++i];
    } else {
      return Status(StatusCode::kUsage, fmt::format("--{} needs a value", name));
    }
  }
  parsed.rest.assign(arguments.begin() + static_cast<std::ptrdiff_t>(std::min(i, arguments.size())),
                     arguments.end());
  return parsed;
}

Result<int> ToInt(const std::string& name, const std::string& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return Status(StatusCode::kUsage, fmt::format("--{} {}: expected a number", name, text));
  }
  return value;
}

// A flag, else its PET_ variable, else nothing.
std::string ValueOf(const Parsed& parsed, const std::string& name) {
  if (const auto it = parsed.values.find(name); it != parsed.values.end()) return it->second;
  std::string variable = "PET_";
  for (const char c : name)
    variable += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  const char* value = std::getenv(variable.c_str());
  return value != nullptr ? value : "";
}

std::string RandomId() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

Result<LaunchOptions> ToOptions(const Parsed& parsed, const std::string& program) {
  LaunchOptions o;
  const auto integer = [&](const char* name, int& out) -> Status {
    const std::string text = ValueOf(parsed, name);
    if (text.empty()) return Status::Ok();
    KEEL_ASSIGN_OR_RETURN(out, ToInt(name, text));
    return Status::Ok();
  };
  if (const std::string text = ValueOf(parsed, "nnodes"); !text.empty()) {
    const size_t colon = text.find(':');
    KEEL_ASSIGN_OR_RETURN(o.nnodes, ToInt("nnodes", text.substr(0, colon)));
    if (colon != std::string::npos && text.substr(colon + 1) != text.substr(0, colon)) {
      return Status(StatusCode::kUsage,
                    fmt::format("--nnodes {}: a changing number of nodes is not supported", text));
    }
  }
  if (const std::string text = ValueOf(parsed, "nproc-per-node"); text == "cpu" || text == "auto") {
    o.nproc_per_node = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  } else if (text == "gpu") {
    int count = 0;
    for (; access(fmt::format("/dev/nvidia{}", count).c_str(), F_OK) == 0; ++count) {
    }
    if (count == 0)
      return Status(StatusCode::kUnavailable,
                    "--nproc-per-node gpu: this node has no NVIDIA device");
    o.nproc_per_node = count;
  } else if (!text.empty()) {
    KEEL_ASSIGN_OR_RETURN(o.nproc_per_node, ToInt("nproc-per-node", text));
  }
  KEEL_RETURN_IF_ERROR(integer("node-rank", o.node_rank));
  KEEL_RETURN_IF_ERROR(integer("max-restarts", o.max_restarts));
  KEEL_RETURN_IF_ERROR(integer("master-port", o.master_port));
  o.master_addr = ValueOf(parsed, "master-addr");
  if (const std::string endpoint = ValueOf(parsed, "rdzv-endpoint"); !endpoint.empty()) {
    const size_t colon = endpoint.rfind(':');
    o.master_addr = endpoint.substr(0, colon);
    if (colon != std::string::npos) {
      KEEL_ASSIGN_OR_RETURN(o.master_port, ToInt("rdzv-endpoint", endpoint.substr(colon + 1)));
    }
  }
  if (parsed.values.contains("standalone")) {
    o.master_addr = "127.0.0.1";
    o.master_port = 0;
  } else if (o.nnodes > 1 && o.master_port == 0) {
    o.master_port = 29500;
  }
  const std::string id = ValueOf(parsed, "rdzv-id");
  o.run_id = !id.empty() ? id : o.nnodes > 1 ? "none" : RandomId();
  o.log_dir = ValueOf(parsed, "log-dir");
  if (const std::string role = ValueOf(parsed, "role"); !role.empty()) o.role = role;
  o.tee = ValueOf(parsed, "redirects").empty() || !ValueOf(parsed, "tee").empty();
  for (std::string list = ValueOf(parsed, "local-ranks-filter"); !list.empty();) {
    const size_t comma = list.find(',');
    KEEL_ASSIGN_OR_RETURN(const int rank, ToInt("local-ranks-filter", list.substr(0, comma)));
    o.local_ranks_filter.push_back(rank);
    list = comma == std::string::npos ? "" : list.substr(comma + 1);
  }
  if (const std::string text = ValueOf(parsed, "shutdown-timeout"); !text.empty()) {
    KEEL_ASSIGN_OR_RETURN(const int seconds, ToInt("shutdown-timeout", text));
    o.shutdown_timeout = std::chrono::seconds(seconds);
  }
  if (!parsed.rest.empty() && !parsed.foreign) o.command.push_back(program);
  o.command.insert(o.command.end(), parsed.rest.begin(), parsed.rest.end());
  return o;
}

std::string SelfPath() {
  std::array<char, 4096> path{};
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size() - 1);
  return std::string(path.data(), size > 0 ? static_cast<size_t>(size) : 0);
}

std::string FlagHelp() {
  std::string text = "Flags (those of torchrun; also with underscores, also as PET_… variables):\n";
  for (const auto& [name, meaning] : Flags()) text += fmt::format("  --{:<20} {}\n", name, meaning);
  text += "  --standalone           One node, any free port\n";
  return text +
         "Examples:\n"
         "  keel launch --nproc-per-node 4 train configs/quickstart.yaml\n"
         "  keel launch --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --nproc-per-node 8 train "
         "run.yaml\n"
         "  keel launch --nproc-per-node 2 --log-dir logs -- ./program argument";
}

}  // namespace

void AddLaunchCommand(CLI::App& app, CommandContext& context) {
  CLI::App* launch =
      app.add_subcommand("launch", "Start a command on several ranks, as torchrun does");
  // The flags end where the command begins, and that command's own flags are not ours.
  launch->prefix_command();
  launch->footer(FlagHelp());
  launch->callback([launch, &context] {
    // CLI11 swallows a "--"; the arguments are taken as they were given.
    std::vector<std::string> arguments;
    bool found = false;
    for (size_t i = 1; i < context.arguments.size(); ++i) {
      if (found) arguments.push_back(context.arguments[i]);
      found = found || context.arguments[i] == "launch";
    }
    static_cast<void>(launch);
    const Parsed parsed = ValueOrThrow(ParseFlags(arguments));
    const LaunchOptions options = ValueOrThrow(ToOptions(parsed, SelfPath()));
    context.exit_code = ValueOrThrow(Launch(options, StartTorchStore));
  });
}

}  // namespace keel::tools
