#include "tools/launch/launch_flags.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <thread>

#include "common/text.h"

namespace keel::tools {

namespace {

// What torchrun's rendezvous backends read beside the two that Keel has, too.
constexpr std::string_view kTorchrunConf[] = {
    // static and c10d
    "rank", "timeout", "last_call_timeout", "close_timeout", "heartbeat_timeout",
    "keep_alive_interval", "keep_alive_max_attempt", "is_host", "read_timeout", "store_type",
    "use_libuv",
    // etcd
    "etcd_prefix", "protocol", "key", "cert", "cacert", "ca_cert", "ssl_cert", "ssl_cert_key",
    "min_workers", "max_workers"};

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
      {"rdzv-conf",
       "KEY=SECONDS,...: join_timeout (600), for all nodes to be there, and for a lost one to come "
       "back where --max-restarts leaves a restart; "
       "keep_alive_timeout (60), after which a silent node is lost"},
      {"max-restarts", "Restarts of all ranks on all nodes after a failure (0)"},
      {"monitor-interval", "Accepted; ranks are watched all the time"},
      {"log-dir", "Folder for each rank's stdout.log, stderr.log and error.json"},
      {"redirects", "Output to --log-dir alone"},
      {"tee", "Output to --log-dir and, prefixed, here (as without it)"},
      {"local-ranks-filter", "Local ranks whose output is shown, such as 0,1"},
      {"role", "Name in ROLE_NAME (default)"},
      {"roles",
       "trainer:N,rollout:M: of all ranks the first N train and the others generate for them; "
       "these are started again alone when they fail (async_training.placement: split). "
       "rollout:M: all generate for another job, as those of keel rollout --join"},
      {"signals-to-handle",
       "Accepted; TERM, INT, HUP, QUIT, USR1 and USR2 are passed on; only after USR2 the job may "
       "restart"},
      {"shutdown-timeout",
       "Seconds ranks have to leave after a passed-on TERM, INT, HUP or QUIT (as long as they take "
       "to save; 30 once a rank has ended, and after a second signal)"},
      {"local-addr", "Accepted; node 0 is known by --master-addr"},
      {"start-method", "Accepted; ranks are programs of their own"},
  };
  return flags;
}

const std::map<std::string, std::string>& Switches() {
  static const std::map<std::string, std::string> switches = {
      {"standalone", "One node, any free port"},
      {"no-python", "Accepted; a rank is never a Python script"},
  };
  return switches;
}

// Flag values by name without dashes, underscores as dashes; then what follows the flags.
struct Parsed {
  std::map<std::string, std::string> values;
  std::vector<std::string> rest;
  bool foreign = false;  // after "--": a program of its own
};

Status UnknownFlag(const std::string& text, const std::string& name) {
  std::vector<std::string> known;
  for (const auto* table : {&Flags(), &Switches()}) {
    for (const auto& [flag, meaning] : *table) known.push_back(flag);
  }
  const std::string near = Closest(name, known);
  return Status(StatusCode::kUsage,
                fmt::format("unknown flag {}{}; keel launch --help lists them", text,
                            near.empty() ? "" : fmt::format(", did you mean --{}?", near)));
}

Result<Parsed> Split(const std::vector<std::string>& arguments) {
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
    const size_t equals = std::min(text.find('='), text.size());
    if (equals < 3 || text.compare(0, 2, "--") != 0) return UnknownFlag(text, "");
    std::string name = text.substr(2, equals - 2);
    std::replace(name.begin(), name.end(), '_', '-');
    if (Switches().contains(name)) {
      if (equals != text.size())
        return Status(StatusCode::kUsage, fmt::format("{}: --{} takes no value", text, name));
      parsed.values[name] = std::string("1");  // gcc 12 -O3 warns of a plain literal, wrongly
    } else if (!Flags().contains(name)) {
      return UnknownFlag("--" + name, name);
    } else if (equals != text.size()) {
      parsed.values[name] = text.substr(equals + 1);
    } else if (i + 1 < arguments.size()) {
      parsed.values[name] = arguments[++i];
    } else {
      return Status(StatusCode::kUsage,
                    fmt::format("--{} needs a value: {}", name, Flags().at(name)));
    }
  }
  parsed.rest.assign(arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
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

std::vector<std::string> SplitCommas(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, comma - begin));
    begin = comma + 1;
  }
  return parts;
}

int CountGpus() {
  int count = 0;
  while (access(fmt::format("/dev/nvidia{}", count).c_str(), F_OK) == 0) ++count;
  return count;
}

std::string RandomId() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

// The values, each from its flag, else its variable, else the default that LaunchOptions has.
class Reader {
 public:
  Reader(const Parsed& parsed, const parallel::EnvLookup& env) : parsed_(parsed), env_(env) {}

  std::string Text(const std::string& name) const {
    if (const auto it = parsed_.values.find(name); it != parsed_.values.end()) return it->second;
    std::string variable = "PET_";
    for (const char c : name)
      variable += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    return env_(variable).value_or("");
  }
  // No flag: the arguments of a process are for all to see.
  Result<std::string> JobSecret() const { return parallel::JobSecret(env_); }
  // For switches, and for flags of which "0" means none.
  bool On(const std::string& name) const {
    const std::string text = Text(name);
    return !text.empty() && text != "0";
  }
  Status Int(const std::string& name, int& out) const {
    const std::string text = Text(name);
    if (text.empty()) return Status::Ok();
    KEEL_ASSIGN_OR_RETURN(out, ToInt(name, text));
    return Status::Ok();
  }
  Status Seconds(const std::string& name, std::optional<std::chrono::milliseconds>& out) const {
    int seconds = -1;
    KEEL_RETURN_IF_ERROR(Int(name, seconds));
    if (seconds >= 0) out = std::chrono::seconds(seconds);
    return Status::Ok();
  }

 private:
  const Parsed& parsed_;
  const parallel::EnvLookup& env_;
};

Status ReadNodes(const Reader& reader, LaunchOptions& o) {
  if (const std::string text = reader.Text("nnodes"); !text.empty()) {
    const size_t colon = text.find(':');
    KEEL_ASSIGN_OR_RETURN(o.nnodes, ToInt("nnodes", text.substr(0, colon)));
    if (colon != std::string::npos && text.substr(colon + 1) != text.substr(0, colon)) {
      return Status(StatusCode::kUsage,
                    fmt::format("--nnodes {}: a changing number of nodes is not supported", text));
    }
  }
  const std::string nproc = reader.Text("nproc-per-node");
  const int gpus = nproc == "gpu" || nproc == "auto" ? CountGpus() : 0;
  if (nproc == "gpu" && gpus == 0) {
    return Status(StatusCode::kUnavailable, "--nproc-per-node gpu: this node has no NVIDIA device");
  }
  if (gpus > 0) {
    o.nproc_per_node = gpus;
  } else if (nproc == "cpu" || nproc == "auto") {
    o.nproc_per_node = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  } else {
    KEEL_RETURN_IF_ERROR(reader.Int("nproc-per-node", o.nproc_per_node));
  }
  return reader.Int("node-rank", o.node_rank);
}

Status ReadRendezvous(const Reader& reader, LaunchOptions& o) {
  const std::string backend = reader.Text("rdzv-backend");
  if (!backend.empty() && backend != "static" && backend != "c10d") {
    return Status(StatusCode::kUsage,
                  fmt::format("--rdzv-backend {}: expected static or c10d", backend));
  }
  o.master_addr = reader.Text("master-addr");
  KEEL_RETURN_IF_ERROR(reader.Int("master-port", o.master_port));
  if (const std::string endpoint = reader.Text("rdzv-endpoint"); !endpoint.empty()) {
    // HOST, HOST:PORT or [IPV6]:PORT.
    const size_t colon = endpoint.rfind(':');
    const bool has_port = colon != std::string::npos && endpoint.back() != ']';
    o.master_addr = has_port ? endpoint.substr(0, colon) : endpoint;
    if (has_port) {
      KEEL_ASSIGN_OR_RETURN(o.master_port, ToInt("rdzv-endpoint", endpoint.substr(colon + 1)));
    }
  }
  if (o.master_addr.size() > 2 && o.master_addr.front() == '[' && o.master_addr.back() == ']')
    o.master_addr = o.master_addr.substr(1, o.master_addr.size() - 2);
  if (reader.On("standalone")) {
    if (o.nnodes != 1)
      return Status(StatusCode::kUsage,
                    fmt::format("--standalone is for one node, --nnodes is {}", o.nnodes));
    o.master_addr = "127.0.0.1";
    o.master_port = 0;
  } else if (o.nnodes > 1 && o.master_port == 0) {
    o.master_port = 29500;
  }
  for (const std::string& part : SplitCommas(reader.Text("rdzv-conf"))) {
    const size_t equals = part.find('=');
    const std::string key = part.substr(0, equals);
    if (key != "join_timeout" && key != "keep_alive_timeout") {
      // torchrun's others mean nothing here; one that is neither is a slip.
      if (std::ranges::find(kTorchrunConf, key) != std::end(kTorchrunConf)) continue;
      return Status(StatusCode::kUsage,
                    fmt::format("--rdzv-conf {}: expected join_timeout or keep_alive_timeout, or "
                                "another key of torchrun's, which is passed over",
                                key));
    }
    KEEL_ASSIGN_OR_RETURN(
        const int seconds,
        ToInt("rdzv-conf", equals == std::string::npos ? "" : part.substr(equals + 1)));
    (key == "join_timeout" ? o.join_timeout : o.silence_limit) = std::chrono::seconds(seconds);
  }
  const std::string id = reader.Text("rdzv-id");
  o.run_id = !id.empty() ? id : o.nnodes > 1 ? "none" : RandomId();
  KEEL_ASSIGN_OR_RETURN(o.job_secret, reader.JobSecret());
  return Status::Ok();
}

Status ReadRoles(const Reader& reader, LaunchOptions& o) {
  const std::string text = reader.Text("roles");
  if (text.empty()) return Status::Ok();
  std::map<std::string, int> roles;
  for (const std::string& part : SplitCommas(text)) {
    const size_t colon = std::min(part.find(':'), part.size());
    const std::string name = part.substr(0, colon);
    if (colon == part.size() || (name != "trainer" && name != "rollout") || roles.contains(name)) {
      return Status(StatusCode::kUsage,
                    fmt::format("--roles {}: expected trainer:N,rollout:M or rollout:M", text));
    }
    KEEL_ASSIGN_OR_RETURN(roles[name], ToInt("roles", part.substr(colon + 1)));
  }
  const int world = o.nnodes * o.nproc_per_node;
  const bool some_train = roles.contains("trainer");
  if (roles["rollout"] < 1 || (some_train && roles["trainer"] < 1)) {
    return Status(StatusCode::kUsage,
                  fmt::format("--roles {}: expected trainer:N,rollout:M or rollout:M, each of one "
                              "rank at least",
                              text));
  }
  if (roles["trainer"] + roles["rollout"] != world) {
    return Status(
        StatusCode::kUsage,
        fmt::format("--roles {}: trainer {} + rollout {} != {} ranks (--nnodes {} x "
                    "--nproc-per-node {})",
                    text, roles["trainer"], roles["rollout"], world, o.nnodes, o.nproc_per_node));
  }
  o.trainers = roles["trainer"];
  return Status::Ok();
}

// Ranks of `keel rollout --join` generate for another job.
Status ReadJoin(LaunchOptions& o) {
  if (!o.own_command) return Status::Ok();
  const bool joins =
      o.command[1] == "rollout" &&
      std::any_of(o.command.begin() + 2, o.command.end(), [](const std::string& argument) {
        return argument == "--join" || argument.starts_with("--join=");
      });
  const std::string_view wrong =
      joins && o.trainers.value_or(0) > 0 ? "ranks that join a job do not train"
      : !joins && o.trainers == 0
          ? "no rank trains: only those of keel rollout --join generate alone"
          : "";
  if (!wrong.empty()) return Status(StatusCode::kUsage, fmt::format("--roles: {}", wrong));
  if (joins) o.trainers = 0;
  return Status::Ok();
}

Status ReadOutput(const Reader& reader, LaunchOptions& o) {
  o.log_dir = reader.Text("log-dir");
  o.tee = !reader.On("redirects") || reader.On("tee");
  for (const std::string& part : SplitCommas(reader.Text("local-ranks-filter"))) {
    KEEL_ASSIGN_OR_RETURN(const int rank, ToInt("local-ranks-filter", part));
    o.local_ranks_filter.push_back(rank);
  }
  return Status::Ok();
}

}  // namespace

Result<LaunchOptions> ParseLaunchFlags(const std::vector<std::string>& arguments,
                                       const std::string& program, const parallel::EnvLookup& env) {
  KEEL_ASSIGN_OR_RETURN(const Parsed parsed, Split(arguments));
  const Reader reader(parsed, env);
  LaunchOptions o;
  KEEL_RETURN_IF_ERROR(ReadNodes(reader, o));
  KEEL_RETURN_IF_ERROR(ReadRendezvous(reader, o));
  KEEL_RETURN_IF_ERROR(ReadOutput(reader, o));
  KEEL_RETURN_IF_ERROR(reader.Int("max-restarts", o.max_restarts));
  KEEL_RETURN_IF_ERROR(reader.Seconds("shutdown-timeout", o.shutdown_timeout));
  if (const std::string role = reader.Text("role"); !role.empty()) o.role = role;
  KEEL_RETURN_IF_ERROR(ReadRoles(reader, o));
  o.own_command = !parsed.rest.empty() && !parsed.foreign;
  if (o.own_command) o.command.push_back(program);
  o.command.insert(o.command.end(), parsed.rest.begin(), parsed.rest.end());
  KEEL_RETURN_IF_ERROR(ReadJoin(o));
  return o;
}

std::vector<LaunchFlag> LaunchFlags() {
  const std::map<std::string, std::vector<std::string>> choices = {
      {"nproc-per-node", {"auto", "cpu", "gpu"}}, {"rdzv-backend", {"c10d", "static"}}};
  std::vector<LaunchFlag> flags;
  for (const auto& [name, meaning] : Flags()) {
    const auto known = choices.find(name);
    flags.push_back(
        {name, meaning, true, known != choices.end() ? known->second : std::vector<std::string>()});
  }
  for (const auto& [name, meaning] : Switches()) flags.push_back({name, meaning, false, {}});
  return flags;
}

std::string LaunchFlagHelp() {
  std::string text = "Flags (those of torchrun; also with underscores, also as PET_… variables):\n";
  for (const LaunchFlag& flag : LaunchFlags())
    text += fmt::format("  --{:<20} {}\n", flag.name, flag.meaning);
  return text +
         "Variables:\n"
         "  KEEL_JOB_SECRET        The same on every node: who connects to the job's store proves "
         "that it knows it\n";
}

}  // namespace keel::tools
