// The keel program's subcommands: one file each, one registering function each.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace keel::tools {

// What a command leaves behind.
struct CommandContext {
  int exit_code = 0;
  // The program's own, argv[0] first; for commands that start others.
  std::vector<std::string> arguments;
  // What it prints shows how the work goes, and is not what it was asked for: that some of it could
  // not be written is no error.
  bool prints_progress = false;
};

void AddConfigCommand(CLI::App& app, CommandContext& context);
void AddConfigImports(CLI::App& config, CommandContext& context);  // import-verl, import-trl
void AddConfigExample(CLI::App& config);                           // example
void AddDataCommand(CLI::App& app, CommandContext& context);
void AddLaunchCommand(CLI::App& app, CommandContext& context);
void AddDoctorCommand(CLI::App& app, CommandContext& context);
void AddStatusCommand(CLI::App& app, CommandContext& context);
void AddReportCommand(CLI::App& app, CommandContext& context);
void AddTraceCommand(CLI::App& app, CommandContext& context);
void AddWatchCommand(CLI::App& app, CommandContext& context);
// Their work is in the keel_torch module, which they load.
void AddTrainCommand(CLI::App& app, CommandContext& context);
void AddRolloutCommand(CLI::App& app, CommandContext& context);
void AddScoreCommand(CLI::App& app, CommandContext& context);
void AddEvalCommand(CLI::App& app, CommandContext& context);
void AddGenerateCommand(CLI::App& app, CommandContext& context);
void AddChatCommand(CLI::App& app, CommandContext& context);
void AddServeCommand(CLI::App& app, CommandContext& context);
void AddCompletionCommand(CLI::App& app, CommandContext& context);
void AddManCommand(CLI::App& app, CommandContext& context);
// Its work is that of another program, which it becomes.
void AddBenchCommand(CLI::App& app, CommandContext& context);

// Not a command for people: what `keel __complete WORD...` prints for the scripts of the shells.
int AnswerCompletion(const CLI::App& app, const std::vector<std::string>& words);

}  // namespace keel::tools
