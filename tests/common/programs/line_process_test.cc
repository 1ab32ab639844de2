#include "common/programs/line_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace keel {
namespace {

constexpr std::chrono::milliseconds kLook{10};

// Neither gone nor a zombie that nobody has reaped yet.
bool Runs(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  if (!std::getline(file, text)) return false;
  const char state = text[text.rfind(')') + 2];
  return state != 'Z' && state != 'X';
}

// Neither ends by itself, nor looks at its input.
TEST(LineProcess, AProgramThatHangsDiesWithTheProcessThatIsKilled) {
  const std::string file = ::testing::TempDir() + "line_process_" + std::to_string(getpid());
  const pid_t asker = fork();
  ASSERT_GE(asker, 0);
  if (asker == 0) {
    LineProcess program(
        "program", "its limit",
        {"/bin/sh", "-c",
         "echo $$ >" + file + ".new; mv " + file + ".new " + file + "; exec sleep 1000"});
    if (!program.Start().ok()) _exit(1);
    for (;;) pause();
  }
  while (!std::filesystem::exists(file) && waitpid(asker, nullptr, WNOHANG) == 0)
    std::this_thread::sleep_for(kLook);
  pid_t program = 0;
  std::ifstream(file) >> program;
  std::filesystem::remove(file);
  ASSERT_GT(program, 1) << "it was not started";
  EXPECT_TRUE(Runs(program));
  kill(asker, SIGKILL);
  waitpid(asker, nullptr, 0);
  for (int looks = 0; Runs(program) && looks < 6000; ++looks) std::this_thread::sleep_for(kLook);
  EXPECT_FALSE(Runs(program)) << "process " << program << " is left behind";
  kill(program, SIGKILL);
}

// It is a limit of this process that has to be raised, and no program that has to be corrected.
TEST(LineProcess, WithoutDescriptorsItIsTheLimitThatIsNamed) {
  const pid_t poor = fork();
  ASSERT_GE(poor, 0);
  if (poor == 0) {
    LineProcess program("program", "its limit", {"/bin/cat"});
    const int next = open("/dev/null", O_RDONLY);  // the lowest that is free
    if (next < 0) _exit(2);
    const rlimit none{static_cast<rlim_t>(next), static_cast<rlim_t>(next)};
    close(next);
    if (setrlimit(RLIMIT_NOFILE, &none) != 0) _exit(3);
    const Status status = program.Start();
    const bool named = status.message().find("ulimit -n") != std::string::npos;
    _exit(status.code() == StatusCode::kExhausted && named ? 0 : 1);
  }
  int status = 0;
  waitpid(poor, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(LineProcess, WhatCannotBeStartedSaysSo) {
  LineProcess program("program", "its limit", {"/no/such/program"});
  const Status status = program.Start();
  EXPECT_EQ(status.code(), StatusCode::kConfig);
  EXPECT_NE(status.message().find("/no/such/program"), std::string::npos) << status.message();
  EXPECT_EQ(program.process(), -1);
}

// One that ends by itself before it has answered would do so again; one that somebody killed would
// not.
TEST(LineProcess, HowAProgramEndedBeforeItsFirstAnswer) {
  const auto start = [](const char* script) {
    LineProcess program("program", "its limit", {"/bin/sh", "-c", script});
    LineGreeting greeting;
    greeting.text = "hello\n";
    greeting.limit = std::chrono::minutes(1);
    greeting.take = [](std::string_view) { return Status::Ok(); };
    program.SetGreeting(greeting);
    return program.Start();
  };
  const Status ended = start("read line; exit 3");
  EXPECT_EQ(ended.code(), StatusCode::kConfig);
  EXPECT_NE(ended.message().find("ended with exit code 3 (its error output says why)"),
            std::string::npos)
      << ended.message();
  const Status killed = start("read line; kill -9 $$");
  EXPECT_EQ(killed.code(), StatusCode::kUnavailable);
  EXPECT_NE(killed.message().find("was killed by signal 9 (Killed)"), std::string::npos)
      << killed.message();
  EXPECT_TRUE(start("read line; echo hello").ok());
}

TEST(LineProcess, AnExchangeThatIsCancelledEndsLongBeforeItsLimit) {
  LineProcess program("program", "its limit", {"/bin/sleep", "1000"});
  LineExchange exchange;
  exchange.text = "a question\n";
  exchange.open = [] { return true; };
  exchange.missing = [] { return std::string("the answer"); };
  exchange.deadline = std::chrono::steady_clock::now() + std::chrono::hours(1);
  std::thread other([&] {
    std::this_thread::sleep_for(kLook);
    program.Cancel();
  });
  const Status ended = program.Exchange(exchange);
  other.join();
  EXPECT_EQ(ended.code(), StatusCode::kCancelled) << ended.ToString();
  EXPECT_EQ(program.process(), -1);
  EXPECT_EQ(program.Exchange(exchange).code(), StatusCode::kCancelled);
  EXPECT_EQ(program.process(), -1);
}

}  // namespace
}  // namespace keel
