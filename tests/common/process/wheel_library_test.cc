// Which PyTorch is taken, on made-up machines: folders of a temporary directory, an environment
// that is a map, and interpreters that answer as they are told to.
#include "common/process/wheel_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

namespace keel {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class WheelLibraryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = "/tmp/keel-wheel-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
    fs::create_directories(root_ / "keel/bin");
  }
  void TearDown() override { fs::remove_all(root_); }

  // A package of this version in `folder`, as a wheel has it.
  fs::path Torch(const fs::path& folder, const std::string& version, bool whole = true) {
    fs::create_directories(root_ / folder / "lib");
    std::ofstream(root_ / folder / "version.py")
        << "from typing import Optional\n__version__ = '" << version << "'\ncuda = '13.0'\n";
    if (whole) std::ofstream(root_ / folder / "lib/libtorch_cpu.so") << "x";
    return root_ / folder;
  }
  void Program(const fs::path& file) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << "#!/bin/sh\n";
    fs::permissions(root_ / file, fs::perms::owner_all);
  }
  Result<std::string> Find() {
    WheelPlaces places;
    places.program_directory = (root_ / "keel/bin/").string();
    places.environment = [this](const std::string& name) -> std::optional<std::string> {
      const auto found = environment_.find(name);
      return found != environment_.end() ? std::optional(found->second) : std::nullopt;
    };
    places.ask_python = [this](const std::string& python, const std::string& package) {
      EXPECT_EQ(package, "torch");
      asked_.push_back(python);
      return answers_[python];
    };
    Wheel wheel = TorchWheel();
    wheel.version = "2.11";
    return FindWheel(wheel, places);
  }
  std::string Found() {
    const auto found = Find();
    return found.ok() ? fs::path(*found).lexically_relative(root_).string()
                      : found.status().ToString();
  }

  fs::path root_;
  std::map<std::string, std::string> environment_;
  std::map<std::string, std::string> answers_;
  std::vector<std::string> asked_;
};

TEST_F(WheelLibraryTest, EachPlaceIsTakenBeforeThoseThatFollow) {
  // From the last place to the first: each new one wins over all that are there.
  Program("usr/bin/python3");
  environment_["PATH"] = "/nowhere:" + (root_ / "usr/bin").string();
  answers_[root_ / "usr/bin/python3"] = Torch("home/torch", "2.11.0+cu130");
  EXPECT_EQ(Found(), "home/torch");
  Torch("usr/lib/python3.11/site-packages/torch", "2.11.0");
  EXPECT_EQ(Found(), "usr/lib/python3.11/site-packages/torch");
  Program("conda/bin/python3");
  Torch("conda/lib/python3.12/site-packages/torch", "2.11.0");
  environment_["CONDA_PREFIX"] = root_ / "conda";
  EXPECT_EQ(Found(), "conda/lib/python3.12/site-packages/torch");
  Program("venv/bin/python3");
  Torch("venv/lib/python3.12/site-packages/torch", "2.11.1");
  environment_["VIRTUAL_ENV"] = root_ / "venv";
  EXPECT_EQ(Found(), "venv/lib/python3.12/site-packages/torch");
  Program("own/bin/python3");
  Torch("own/lib/python3.12/site-packages/torch", "2.11.0");
  environment_["KEEL_PYTHON"] = root_ / "own/bin/python3";
  EXPECT_EQ(Found(), "own/lib/python3.12/site-packages/torch");
  Torch("torch", "2.11.0");  // the installation is site-packages/keel_program of a wheel
  EXPECT_EQ(Found(), "torch");
  Torch("keel/lib/python3.11/site-packages/torch", "2.11.0");
  EXPECT_EQ(Found(), "keel/lib/python3.11/site-packages/torch");
  Torch("keel/lib/keel/torch", "2.11.0");
  EXPECT_EQ(Found(), "keel/lib/keel/torch");
  environment_["KEEL_TORCH_DIR"] = Torch("mine", "2.11.0");
  EXPECT_EQ(Found(), "mine");
  EXPECT_EQ(asked_.size(), 1u);  // only where no folder had one
}

TEST_F(WheelLibraryTest, AnotherVersionIsPassedByAndNamed) {
  Torch("keel/lib/keel/torch", "2.10.0+cpu");
  Torch("torch", "2.110.0");
  Program("usr/bin/python3");
  environment_["PATH"] = root_ / "usr/bin";
  const auto none = Find();
  ASSERT_EQ(none.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(none.status().message(),
              AllOf(HasSubstr("lib/keel/torch: torch 2.10.0+cpu, and this Keel needs 2.11"),
                    HasSubstr("/torch: torch 2.110.0, and this Keel needs 2.11"),
                    HasSubstr("usr/bin/python3: it cannot import torch"),
                    HasSubstr("pip install torch==2.11"), HasSubstr("KEEL_TORCH_DIR")));
  Torch("usr/local/lib/python3.11/dist-packages/torch", "2.11.0");
  EXPECT_EQ(Found(), "usr/local/lib/python3.11/dist-packages/torch");
}

TEST_F(WheelLibraryTest, TheVariableIsBelievedOrRefused) {
  Torch("keel/lib/keel/torch", "2.11.0");
  for (const auto& [folder, complaint] : std::map<std::string, std::string>{
           {Torch("old", "2.9.1"), "torch 2.9.1, and this Keel needs 2.11"},
           {Torch("half", "2.11.0", false), "lib/libtorch_cpu.so is missing: install it again"},
           {root_ / "none", "nothing there"},
           {root_ / "keel", "no " + (root_ / "keel/lib/libtorch_cpu.so").string() + " is there"}}) {
    environment_["KEEL_TORCH_DIR"] = folder;
    const auto refused = Find();
    ASSERT_EQ(refused.status().code(), StatusCode::kUnavailable) << folder;
    EXPECT_THAT(refused.status().message(),
                AllOf(HasSubstr("KEEL_TORCH_DIR is " + folder), HasSubstr(complaint)));
  }
  // The folder around it, and the archive of libtorch without Python, are understood.
  Torch("site-packages/torch", "2.11.0");
  environment_["KEEL_TORCH_DIR"] = root_ / "site-packages";
  EXPECT_EQ(Found(), "site-packages/torch");
  fs::rename(Torch("libtorch", "2.11.0") / "version.py", root_ / "unused");
  std::ofstream(root_ / "libtorch/build-version") << "2.11.0+cpu\n";
  environment_["KEEL_TORCH_DIR"] = root_ / "libtorch";
  EXPECT_EQ(Found(), "libtorch");
  environment_["KEEL_TORCH_DIR"] = "";  // as if it were not set
  EXPECT_EQ(Found(), "keel/lib/keel/torch");
}

TEST_F(WheelLibraryTest, WhatLooksLikeALibraryAndIsNoneIsNamed) {
  const fs::path folder = Torch("mine", "2.11.0");
  const Status loaded = LoadWheel(TorchWheel(), folder);
  EXPECT_EQ(loaded.code(), StatusCode::kUnavailable);
  EXPECT_THAT(loaded.message(),
              HasSubstr((folder / "lib/libtorch_cpu.so").string() + " cannot be loaded"));
  EXPECT_THAT(LoadNeighbours("libno_such.so", {"liba.so"}).message(), HasSubstr("is not loaded"));
  EXPECT_THAT(LoadNeighbours("libc.so.6", {"libno_such.so"}).message(),
              HasSubstr("has no libno_such.so beside libc.so.6"));
}

}  // namespace
}  // namespace keel
