// keel bench: becomes keel_bench, the program of the benchmarks, which lies beside it in a build
// tree and is not installed.

#include <fmt/format.h>
#include <unistd.h>

#include "common/process/shared_module.h"
#include "common/status.h"
#include "tools/command.h"

namespace keel::tools {

namespace {

void BecomeBench(const std::vector<std::string>& arguments) {
  const std::string program = ProgramDirectory() + "keel_bench";
  std::vector<std::string> command = {program};
  command.insert(command.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& text : command) argv.push_back(text.data());
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  throw Error(StatusCode::kNotFound,
              fmt::format("{} cannot be started; the benchmarks run from a build tree, as "
                          "tools/bootstrap.sh --tests makes it",
                          program));
}

}  // namespace

void AddBenchCommand(CLI::App& app, CommandContext& /*context*/) {
  CLI::App* bench =
      app.add_subcommand("bench", "Measure Keel beside its peers (from a build tree)");
  // All that follows is for that program, --help too.
  bench->set_help_flag();
  bench->prefix_command();
  bench->callback([bench] { BecomeBench(bench->remaining()); });
}

}  // namespace keel::tools
