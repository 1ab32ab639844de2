// Checkpoints that a command may not read, or has no descriptor to read: what it says of them.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <stdexcept>

#include "common/json.h"
#include "tests/tools/ckpt_commands_fixture.h"

namespace keel::tools {
namespace {

using std::filesystem::perms;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kWeights[] = "global_step_20/actor/model/rank_00000.safetensors";
constexpr char kManifest[] = "global_step_20/manifest.json";
constexpr uid_t kNobody = 65534;

// While it lives, this process may open no more than others may, even where root has started it.
class AsNobody {
 public:
  AsNobody() : before_(geteuid()) {
    if (before_ == 0 && seteuid(kNobody) != 0) throw std::runtime_error("seteuid");
  }
  ~AsNobody() {
    if (before_ == 0) (void)!seteuid(before_);
  }
  AsNobody(const AsNobody&) = delete;
  AsNobody& operator=(const AsNobody&) = delete;

 private:
  const uid_t before_;
};

// While it lives, this process may open `more` files beside those that are open.
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t more) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
    close(next);
    const rlimit few{static_cast<rlim_t>(next) + more, before_.rlim_max};
    if (next < 0 || setrlimit(RLIMIT_NOFILE, &few) != 0) throw std::runtime_error("setrlimit");
  }
  ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
};

class CkptUnreadable : public CkptCommands {
 protected:
  CkptUnreadable() { std::filesystem::permissions(dir_.path(), perms(0755)); }
  void Close(const std::string& file) { std::filesystem::permissions(dir_ / file, perms::none); }
  Outcome Ls(bool json) { return Call(CkptLs, CkptLsOptions{dir_.path(), json}); }
  Outcome Verify(const std::string& path) { return Call(CkptVerify, CkptVerifyOptions{path, 1}); }
};

TEST_F(CkptUnreadable, VerifySaysThatItCouldNotReadAndSpeaksOfNoDamage) {
  for (const std::string file : {kWeights, kManifest}) {
    SCOPED_TRACE(file);
    Close(file);
    {
      const AsNobody nobody;
      for (const std::string& path : {dir_.path(), dir_ / "global_step_20"}) {
        const Outcome run = Verify(path);
        EXPECT_EQ(run.code, ExitCodeFor(StatusCode::kIo)) << run.out << run.err;
        EXPECT_THAT(run.out, AllOf(HasSubstr("global_step_20: not verified: "), HasSubstr(file),
                                   HasSubstr("Permission denied"), Not(HasSubstr("DAMAGED"))));
      }
      EXPECT_THAT(Verify(dir_.path()).out, HasSubstr("global_step_40: ok"));
    }
    std::filesystem::permissions(dir_ / file, perms(0644));
  }
  // Damage that was found is damage, and all that was found is said.
  Close(kWeights);
  FlipByte("global_step_20/actor/optimizer/rank_00001.safetensors", 9000);
  const AsNobody nobody;
  const Outcome damaged = Verify(dir_.path());
  EXPECT_EQ(damaged.code, 1);
  EXPECT_THAT(damaged.out, HasSubstr("global_step_20: DAMAGED: 2 problems"));
  EXPECT_THAT(damaged.err, AllOf(HasSubstr(kWeights), HasSubstr("optimizer/rank_00001")));
}

TEST_F(CkptUnreadable, LsShowsWhatItMayNotReadAsUnreadable) {
  Close(kManifest);
  const AsNobody nobody;
  const std::string table = Ls(false).out;
  EXPECT_THAT(table, AllOf(HasSubstr("unreadable\n"), HasSubstr("global_step_20 cannot be read: "),
                           HasSubstr("Permission denied"), Not(HasSubstr("not a valid")),
                           Not(HasSubstr("NO\n"))));
  const Json json = Json::parse(Ls(true).out);
  EXPECT_EQ(json[0]["valid"], true);
  EXPECT_EQ(json[1]["valid"], Json());
  EXPECT_THAT(json[1]["reason"].get<std::string>(), HasSubstr("Permission denied"));
}

// It keeps what is older, and calls nothing damaged.
TEST_F(CkptUnreadable, PruneCountsNothingThatItMayNotRead) {
  for (const std::string file :
       {"global_step_40/actor/model/rank_00000.safetensors", "global_step_40/manifest.json"}) {
    SCOPED_TRACE(file);
    Close(file);
    {
      const AsNobody nobody;
      const Outcome run =
          Call(CkptPrune, CkptPruneOptions{.directory = dir_.path(), .dry_run = true});
      EXPECT_EQ(run.code, 0) << run.err;
      EXPECT_THAT(run.out,
                  AllOf(HasSubstr("left global_step_40: cannot be read"),
                        HasSubstr("left global_step_20: "), HasSubstr("\n0 of 2 checkpoints"),
                        Not(HasSubstr("damaged")), Not(HasSubstr("not a valid"))));
    }
    std::filesystem::permissions(dir_ / file, perms(0644));
  }
}

TEST_F(CkptUnreadable, LsShowsWhatItHasNoDescriptorForAsUnreadable) {
  int unreadable = 0;
  for (rlim_t more = 0; more < 12; ++more) {
    SCOPED_TRACE(more);
    std::string table;
    {
      const FewDescriptors few(more);
      table = Ls(false).out;
    }
    EXPECT_THAT(table, AllOf(Not(HasSubstr("not a valid")), Not(HasSubstr("NO\n"))));
    if (table.find("global_step_20 cannot be read: ") != std::string::npos) ++unreadable;
  }
  EXPECT_GT(unreadable, 0);
  EXPECT_THAT(Ls(false).out, Not(HasSubstr("unreadable")));
}

}  // namespace
}  // namespace keel::tools
