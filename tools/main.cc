// The keel program.

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "common/guarded.h"
#include "common/process/program_id.h"
#include "common/process/signal_handler.h"
#include "common/status.h"
#include "common/terminal.h"
#include "common/text.h"
#include "tools/ckpt/ckpt_commands.h"
#include "tools/command.h"
#include "tools/crash_report.h"
#include "tools/number_check.h"
#include "tools/stop_signals.h"
#include "tools/torch_module.h"
#include "tools/usage.h"

namespace {

// The exit code.
int Run(int argc, char** argv, keel::tools::CommandContext& context) {
  CLI::App app{
      "Keel trains language models: pre-training, supervised fine-tuning, DPO and RL over tensor, "
      "pipeline and data parallel ranks, with checkpoints that are never lost.",
      "keel"};
  app.set_version_flag("-v,--version", fmt::format("keel {}", keel::ProgramVersion()));
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  keel launch --nproc-per-node 4 train configs/quickstart.yaml "
      "'data.train_files=[text.txt]'\n"
      "  keel ckpt ls runs/quickstart\n"
      "  keel ckpt export-hf runs/quickstart/global_step_120 exported\n"
      "  keel generate --model exported --input prompts.jsonl --output out.jsonl");
  context.arguments.assign(argv, argv + argc);
  keel::tools::AddConfigCommand(app, context);
  keel::tools::AddCkptCommands(app, &context.exit_code);
  keel::tools::AddLaunchCommand(app, context);
  keel::tools::AddDataCommand(app, context);
  keel::tools::AddDoctorCommand(app, context);
  keel::tools::AddStatusCommand(app, context);
  keel::tools::AddReportCommand(app, context);
  keel::tools::AddWatchCommand(app, context);
  keel::tools::AddTraceCommand(app, context);
  keel::tools::AddTrainCommand(app, context);
  keel::tools::AddRolloutCommand(app, context);
  keel::tools::AddScoreCommand(app, context);
  keel::tools::AddGenerateCommand(app, context);
  keel::tools::AddEvalCommand(app, context);
  keel::tools::AddChatCommand(app, context);
  keel::tools::AddServeCommand(app, context);
  keel::tools::AddBenchCommand(app, context);
  keel::tools::AddCompletionCommand(app, context);
  keel::tools::AddManCommand(app, context);
  keel::tools::CheckNumbers(app);
  // Whatever words follow are those of a command line that is being written.
  if (argc > 1 && std::string_view(argv[1]) == "__complete")
    return keel::tools::AnswerCompletion(app, std::vector<std::string>(argv + 2, argv + argc));
  // What follows `launch` is taken as it was given: a "--" in it is not for CLI11.
  // `keel help ckpt ls` is `keel ckpt ls --help`.
  std::vector<char*> help(argv, argv + argc);
  std::string help_flag = "--help";
  if (argc > 1 && std::string_view(argv[1]) == "help") {
    help.erase(help.begin() + 1);
    help.push_back(help_flag.data());
    argv = help.data();
  }
  const bool launch = argc > 2 && std::string_view(argv[1]) == "launch" &&
                      std::string_view(argv[2]) != "--help" && std::string_view(argv[2]) != "-h";
  try {
    app.parse(launch ? 2 : argc, argv);
  } catch (const CLI::ParseError& error) {
    return keel::tools::AnswerParseError(app, argc, argv, error);
  }
  return context.exit_code;
}

// A file that was opened as one of the first three would get what is printed. False: standard
// output was closed, and nobody wants it.
bool OpenStandardStreams() {
  const bool wanted = ::fcntl(STDOUT_FILENO, F_GETFD) != -1;
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) != -1) continue;
    // Reading from the first and writing to the second fails, as it did.
    static_cast<void>(::open("/dev/null", fd == STDOUT_FILENO ? O_RDONLY : O_WRONLY));
  }
  return wanted;
}

keel::Status NotWritten(int error) {
  return keel::Status::FromErrno(error, "write", "standard output");
}

int RunAndReport(int argc, char** argv, bool wants_output) {
  try {
    keel::tools::TakeStopSignals(argc > 1 ? argv[1] : "");
    keel::tools::CommandContext context;
    const int code = Run(argc, argv, context);
    errno = 0;  // what was printed may still lie in memory
    const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
    if (lost && wants_output && !context.prints_progress)
      keel::ThrowIfError(NotWritten(errno != 0 ? errno : EIO));
    return code;
  } catch (const std::exception& error) {
    keel::Status status = keel::StatusOf(error);
    const auto* system = dynamic_cast<const std::system_error*>(&error);
    if (system != nullptr && std::ferror(stdout) != 0) status = NotWritten(system->code().value());
    keel::WriteStderr(fmt::format("keel: {}\n", keel::PrintableLines(status.ToString())));
    const int code = keel::ExitCodeFor(status.code());
    keel::tools::ReportCrash(status.ToString(), code);
    return code;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool wants_output = OpenStandardStreams();
  keel::tools::InstallTerminateHandler();
  keel::HearEndSignalsAsProcessOne();
  // Where whoever starts this one ignores it, the system keeps no end of a child to wait for.
  std::signal(SIGCHLD, SIG_DFL);
  std::signal(SIGXFSZ, SIG_IGN);  // a limit of file sizes is an error of the write that meets it
  const int code = RunAndReport(argc, argv, wants_output);
  if (!keel::tools::HasTorchModule()) return code;
  // All is closed and on the disk. What is left are torch's global objects: to take down its table
  // of operators would cost as much as a third of the start, and the kernel frees them at once.
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(code);
}
