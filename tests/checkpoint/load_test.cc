// A load by several ranks together: each byte is read once, all get what they need, and whatever
// goes wrong on one rank ends the load of all alike.
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>

#include "checkpoint/checkpointer.h"
#include "checkpoint/step_reader.h"
#include "tests/checkpoint/sim_file_system.h"
#include "tests/checkpoint/test_support.h"
#include "tests/checkpoint/view_file_system.h"

namespace keel::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace keel::checkpoint::testing;  // NOLINT: the helpers of these tests

using std::chrono::milliseconds;

// Every rank of a load with its own view of the disk.
struct Views {
  explicit Views(FileSystem& disk, int world) {
    for (int r = 0; r < world; ++r) views.push_back(std::make_unique<ViewFileSystem>(disk));
  }
  LoadSetup Setup() const {
    LoadSetup setup;
    for (const auto& view : views) setup.views.push_back(view.get());
    setup.options = SmallOptions();
    return setup;
  }
  int64_t BytesRead(std::string_view suffix) const {
    int64_t sum = 0;
    for (const auto& view : views) sum += view->bytes_read(suffix);
    return sum;
  }
  ViewFileSystem& operator[](int r) { return *views[static_cast<size_t>(r)]; }
  std::vector<std::unique_ptr<ViewFileSystem>> views;
};

// How the bytes that one rank has read come to another.
enum class Way {
  kMemory,
  kChannel,
  kEither,    // one rank shares no memory
  kTwoHosts,  // even and odd ranks share memory among themselves
};
const std::vector<Way> kWays = {Way::kMemory, Way::kChannel, Way::kEither, Way::kTwoHosts};

// Passes everything on, but that what even ranks and odd ones offer each other to share does not
// hold.
class TwoHosts : public PeerChannel {
 public:
  explicit TwoHosts(PeerChannel& real) : real_(real) {}
  int rank() const override { return real_.rank(); }
  int world() const override { return real_.world(); }
  Status Exchange(std::span<const Send> sends, std::span<const Receive> receives,
                  milliseconds deadline) override {
    const Status status = real_.Exchange(sends, receives, deadline);
    for (const Receive& one : receives) {
      // An offer begins with 1 and the process; its nonce follows at 24.
      int64_t pid = 0;
      if (one.bytes.size() == 256) std::memcpy(&pid, one.bytes.data() + 4, sizeof pid);
      if (pid == ::getpid() && (one.peer - rank()) % 2 != 0) one.bytes[24] ^= std::byte{1};
    }
    return status;
  }

 private:
  PeerChannel& real_;
};

// Changes requests so that they go that way. Lives as long as the load.
class WaySetup {
 public:
  WaySetup(Way way, int world) : way_(way), channels_(static_cast<size_t>(world)) {}
  void Apply(int rank, LoadRequest* request) {
    if (way_ == Way::kChannel || (way_ == Way::kEither && rank == 1)) request->share_memory = false;
    if (way_ != Way::kTwoHosts || request->channel == nullptr) return;
    channels_[static_cast<size_t>(rank)] = std::make_unique<TwoHosts>(*request->channel);
    request->channel = channels_[static_cast<size_t>(rank)].get();
  }

 private:
  const Way way_;
  std::vector<std::unique_ptr<TwoHosts>> channels_;
};

void ExpectAllOk(const LoadOutcome& outcome) {
  for (const Status& status : outcome.statuses) EXPECT_EQ(status.ToString(), "ok");
}

// A state of several megabytes over four data-parallel ranks: every rank holds all weights, and a
// quarter of the rest.
struct Replicated {
  explicit Replicated(int world, int64_t rows = 512) : cut({world}, 1, ModelSize::kTiny) {
    const TensorInfo weight{"model.w", DType::kBF16, Dims{rows, 256}};
    const TensorInfo norm{"model.norm", DType::kF32, Dims{256}};
    const TensorInfo master{"optimizer.master.w", DType::kF32, Dims{rows, 256}};
    state = {MakeState({weight, norm}, 3), MakeState({master}, 4)};
    for (int r = 0; r < world; ++r) {
      const auto i = static_cast<size_t>(r);
      cut.model[i] = RankPart();
      cut.optimizer[i] = RankPart();
      cut.model[i].AddBox(weight, Box::Whole(weight.shape), r);
      cut.model[i].AddBox(norm, Box::Whole(norm.shape), r);
      const int64_t from = rows * r / world;
      const int64_t to = rows * (r + 1) / world;
      cut.optimizer[i].AddBox(master, {Dims{from, 0}, Dims{to - from, 256}});
    }
  }
  Cut cut;
  TrainingState state;
};

TEST(Load, AnyLayoutToAnyOtherInEveryMode) {
  for (uint64_t seed = 0; seed < 120; ++seed) {
    const TrainingState state = MakeTrainingState(seed);
    SimFileSystem disk;
    Cut from({1 + static_cast<int>(seed % 5), seed % 2 == 0, seed % 3 != 0, true}, seed);
    from.Fill(state);
    ASSERT_EQ(SaveOn(disk, from, 7, SmallOptions()).ToString(), "ok") << "seed " << seed;
    Cut to({1 + static_cast<int>((seed / 5) % 6), seed % 3 == 0, seed % 2 != 0, true}, seed + 1000);
    Views views(disk, to.world());
    for (const bool in_place : {false, true}) {
      // None, and memory or channel; and both of them for some.
      const int ways_here = seed % 4 == 0 ? static_cast<int>(kWays.size()) : 2;
      for (int way = -1; way < ways_here; ++way) {
        SCOPED_TRACE(::testing::Message()
                     << "seed " << seed << " in place " << in_place << " way " << way);
        to.Clear(0x5a);
        LoadSetup setup = views.Setup();
        setup.exchange = way >= 0;
        setup.options.load_threads = 1 + static_cast<int>(seed % 3);
        WaySetup ways(way >= 0 ? kWays[static_cast<size_t>(way)] : Way::kMemory, to.world());
        setup.change = [&](int rank, LoadRequest& request) {
          ways.Apply(rank, &request);
          request.in_place = in_place;
          return true;
        };
        ExpectAllOk(LoadRanks(to, setup));
        ASSERT_EQ(to.FirstDifference(state), "");
      }
    }
  }
}

TEST(Load, EachByteIsReadOnceByAnyNumberOfRanks) {
  Replicated from(2);
  SimFileSystem disk;
  from.cut.Fill(from.state);
  ThrowIfError(SaveOn(disk, from.cut, 5, SmallOptions()));
  const auto read_by = [&](int world, Way way) {
    SCOPED_TRACE(::testing::Message() << world << " ranks, way " << static_cast<int>(way));
    Replicated to(world);
    to.cut.Clear(1);
    Views views(disk, world);
    LoadSetup setup = views.Setup();
    WaySetup ways(way, world);
    setup.change = [&](int rank, LoadRequest& request) {
      ways.Apply(rank, &request);
      return true;
    };
    const LoadOutcome outcome = LoadRanks(to.cut, setup);
    ExpectAllOk(outcome);
    EXPECT_EQ(to.cut.FirstDifference(from.state), "");
    int64_t size = 0;
    for (const std::string& path : disk.AllFiles()) {
      if (path.ends_with(".safetensors")) size += static_cast<int64_t>(disk.Content(path).size());
    }
    EXPECT_EQ(views.BytesRead(".safetensors"), size) << world;
    // And no rank reads much more than its share.
    int64_t most = 0;
    int64_t recorded = 0;
    for (const auto& record : outcome.records) {
      most = std::max(most, record->bytes);
      recorded += record->bytes;
    }
    EXPECT_EQ(recorded, size);
    EXPECT_LE(most, size * 13 / 10 / world + 4 * 4096) << world;
  };
  for (const int world : {1, 2, 3, 4, 8}) {
    for (const Way way : kWays) read_by(world, way);
  }
}

TEST(Load, WithoutAChannelEachRankReadsWhatItNeeds) {
  Replicated from(2);
  SimFileSystem disk;
  from.cut.Fill(from.state);
  ThrowIfError(SaveOn(disk, from.cut, 5, SmallOptions()));
  Replicated to(4);
  to.cut.Clear(1);
  Views views(disk, 4);
  LoadSetup setup = views.Setup();
  setup.change = [&](int rank, LoadRequest& request) {
    if (rank == 2) request.channel = nullptr;  // on one rank is enough
    return true;
  };
  ExpectAllOk(LoadRanks(to.cut, setup));
  EXPECT_EQ(to.cut.FirstDifference(from.state), "");
  // The weights four times, the rest once.
  int64_t weights = 0;
  for (const auto& [name, tensor] : from.state.model)
    weights += static_cast<int64_t>(tensor.bytes.size());
  EXPECT_GE(views.BytesRead(".safetensors"), 4 * weights);
}

// Damage in the part of each reader in turn, on the disk or only in what that one rank is given.
TEST(Load, DamageInAnyReadersPartFailsAllAndIsNamed) {
  const int world = 3;
  Replicated job(world);
  SimFileSystem disk;
  job.cut.Fill(job.state);
  ThrowIfError(SaveOn(disk, job.cut, 10, SmallOptions()));
  const TrainingState newer = {
      MakeState({job.state.model.at("model.w").info, job.state.model.at("model.norm").info}, 7),
      MakeState({job.state.optimizer.at("optimizer.master.w").info}, 8)};
  job.cut.Fill(newer);
  ThrowIfError(SaveOn(disk, job.cut, 20, SmallOptions()));
  for (size_t number = 0; number < 2 * kWays.size(); ++number) {
    const bool in_place = number % 2 == 0;
    const Way way = kWays[number / 2];
    for (int reader = 0; reader < world; ++reader) {
      for (const char* file : {"model/rank_00000", "model/rank_00001", "optimizer/rank_00002"}) {
        SCOPED_TRACE(::testing::Message() << file << " seen by rank " << reader << " in place "
                                          << in_place << " way " << static_cast<int>(way));
        // Wrong from the middle on, for this rank alone.
        Views views(disk, world);
        std::mutex mutex;
        bool seen = false;
        views[reader].SetChange([&](std::string_view path, int64_t offset, std::span<std::byte> b) {
          if (!path.starts_with("global_step_20") || path.find(file) == std::string_view::npos)
            return;
          const std::lock_guard lock(mutex);
          if (offset >= 8192) {
            b[b.size() / 2] ^= std::byte{1};
            seen = true;
          }
        });
        LoadSetup setup = views.Setup();
        WaySetup ways(way, world);
        setup.change = [&](int rank, LoadRequest& request) {
          ways.Apply(rank, &request);
          request.in_place = in_place;
          return true;
        };
        job.cut.Clear(0x33);
        const LoadOutcome outcome = LoadRanks(job.cut, setup);
        ExpectAllOk(outcome);
        // A rank that has none of this file to read does not see the damage.
        EXPECT_EQ(outcome.records[0]->step, seen ? 10 : 20);
        EXPECT_EQ(job.cut.FirstDifference(seen ? job.state : newer), "");
        if (!seen) continue;
        for (const auto& record : outcome.records) {
          ASSERT_EQ(record->skipped.size(), 1U);
          EXPECT_THAT(record->skipped[0].reason,
                      AllOf(HasSubstr("rank " + std::to_string(reader)), HasSubstr(file),
                            HasSubstr("chunk"), HasSubstr("step 20"),
                            AnyOf(HasSubstr("model.w"), HasSubstr("optimizer.master.w"))));
        }
      }
    }
  }
}

TEST(Load, AFailedLoadLeavesLiveMemoryOrSaysThatItDidNot) {
  const int world = 2;
  Replicated job(world);
  SimFileSystem disk;
  job.cut.Fill(job.state);
  ThrowIfError(SaveOn(disk, job.cut, 10, SmallOptions()));
  for (const std::string& path : disk.AllFiles()) {
    if (!path.ends_with("optimizer/rank_00001.safetensors")) continue;
    std::string content = disk.Content(path);
    content[content.size() - 5] ^= 1;
    disk.SetContent(path, content);
  }
  for (const bool in_place : {false, true}) {
    job.cut.Clear(0x44);
    const auto loaded =
        LoadFrom(disk, job.cut, [&](LoadRequest& request) { request.in_place = in_place; });
    EXPECT_EQ(loaded.status().code(), StatusCode::kDataLoss);
    EXPECT_THAT(loaded.status().message(), HasSubstr("none is valid"));
    if (in_place) {
      EXPECT_THAT(loaded.status().message(), HasSubstr("end this process"));
      continue;
    }
    for (const auto* parts : {&job.cut.model, &job.cut.optimizer}) {
      for (const RankPart& part : *parts) {
        for (const auto& block : part.memory) {
          EXPECT_TRUE(std::all_of(block->begin(), block->end(),
                                  [](std::byte b) { return b == std::byte{0x44}; }));
        }
      }
    }
  }
}

// In place, what a damaged checkpoint has written must not show through where an older one is
// allowed to lack a tensor.
TEST(Load, InPlaceNeverMixesTwoSteps) {
  const int world = 2;
  Replicated job(world);
  SimFileSystem disk;
  job.cut.Fill(job.state);
  ThrowIfError(SaveOn(disk, job.cut, 10, SmallOptions()));
  for (int r = 0; r < world; ++r) {
    job.cut.model[static_cast<size_t>(r)].AddBox({"model.extra", DType::kF32, Dims{4096}},
                                                 Box::Whole(Dims{4096}), r);
  }
  TrainingState with_extra = job.state;
  with_extra.model.merge(MakeState({{"model.extra", DType::kF32, Dims{4096}}}, 9));
  job.cut.Fill(with_extra);
  ThrowIfError(SaveOn(disk, job.cut, 20, SmallOptions()));
  for (const std::string& path : disk.AllFiles()) {
    if (!path.starts_with("global_step_20") || !path.ends_with("optimizer/rank_00001.safetensors"))
      continue;
    std::string content = disk.Content(path);
    content[content.size() - 5] ^= 1;
    disk.SetContent(path, content);
  }
  job.cut.Clear(0x55);
  const auto mixed = LoadFrom(disk, job.cut, [&](LoadRequest& request) {
    request.in_place = true;
    request.allow_missing = {"model.extra"};
  });
  EXPECT_EQ(mixed.status().code(), StatusCode::kConfig);
  EXPECT_THAT(mixed.status().message(),
              AllOf(HasSubstr("global_step_10"), HasSubstr("damaged newer checkpoint"),
                    HasSubstr("end this process")));
  // With staging it is the older one, and the tensor that it lacks is as it was.
  job.cut.Clear(0x55);
  const auto staged = LoadFrom(
      disk, job.cut, [&](LoadRequest& request) { request.allow_missing = {"model.extra"}; });
  ASSERT_TRUE(staged.ok()) << staged.status().ToString();
  EXPECT_EQ((*staged)->step, 10);
  for (const RankPart& part : job.cut.model) {
    EXPECT_TRUE(std::all_of(part.memory[2]->begin(), part.memory[2]->end(),
                            [](std::byte b) { return b == std::byte{0x55}; }));
  }
}

TEST(Load, ARankThatDiesOrStallsInTheExchangeIsNamed) {
  const int world = 3;
  Replicated job(world);
  SimFileSystem disk;
  job.cut.Fill(job.state);
  ThrowIfError(SaveOn(disk, job.cut, 10, SmallOptions()));
  // A channel that ends one rank's part in the n-th exchange.
  class Dying : public PeerChannel {
   public:
    Dying(PeerChannel& real, int calls) : real_(real), left_(calls) {}
    int rank() const override { return real_.rank(); }
    int world() const override { return real_.world(); }
    Status Exchange(std::span<const Send> sends, std::span<const Receive> receives,
                    milliseconds deadline) override {
      if (left_-- <= 0) return Status(StatusCode::kUnavailable, "killed");
      return real_.Exchange(sends, receives, deadline);
    }

   private:
    PeerChannel& real_;
    int left_;
  };
  // Over shared memory there are no more exchanges than two.
  for (int number = 0; number < 6 * world; ++number) {
    const int victim = number % world;
    const auto [calls, share_memory] =
        std::vector<std::pair<int, bool>>{{0, true},  {1, true},  {0, false},
                                          {1, false}, {2, false}, {4, false}}
            .at(static_cast<size_t>(number / world));
    {
      SCOPED_TRACE(::testing::Message()
                   << "rank " << victim << " in exchange " << calls << " memory " << share_memory);
      job.cut.Clear(0x66);
      Views views(disk, world);
      LoadSetup setup = views.Setup();
      setup.options.deadline = milliseconds(300);
      std::unique_ptr<Dying> dying;
      setup.change = [&, share = share_memory, count = calls](int rank, LoadRequest& request) {
        request.share_memory = share;
        if (rank == victim) {
          dying = std::make_unique<Dying>(*request.channel, count);
          request.channel = dying.get();
        }
        return true;
      };
      const LoadOutcome outcome = LoadRanks(job.cut, setup);
      for (int r = 0; r < world; ++r) {
        const Status& status = outcome.statuses[static_cast<size_t>(r)];
        EXPECT_FALSE(status.ok());
        if (r == victim) continue;
        EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
        EXPECT_THAT(status.message(), HasSubstr("for rank " + std::to_string(victim)));
      }
      for (const RankPart& part : job.cut.model) {
        EXPECT_EQ(static_cast<int>((*part.memory[0])[0]), 0x66);
      }
    }
  }
}

TEST(Load, RanksThatSeeOlderOrOtherThingsAllTakeTheSameStep) {
  const int world = 3;
  Replicated job(world);
  SimFileSystem disk;
  job.cut.Fill(job.state);
  ThrowIfError(SaveOn(disk, job.cut, 10, SmallOptions()));
  const TrainingState newer = {
      MakeState({job.state.model.at("model.w").info, job.state.model.at("model.norm").info}, 7),
      MakeState({job.state.optimizer.at("optimizer.master.w").info}, 8)};
  job.cut.Fill(newer);
  ThrowIfError(SaveOn(disk, job.cut, 20, SmallOptions()));
  const auto expect = [&](const Views& views, milliseconds grace, int64_t step) {
    LoadSetup setup = views.Setup();
    setup.options.visibility_grace = grace;
    job.cut.Clear(0x11);
    const LoadOutcome outcome = LoadRanks(job.cut, setup);
    ExpectAllOk(outcome);
    for (const auto& record : outcome.records) EXPECT_EQ(record->step, step);
    EXPECT_EQ(job.cut.FirstDifference(step == 20 ? newer : job.state), "");
  };
  for (int r = 0; r < world; ++r) {
    {
      SCOPED_TRACE("never sees the new directory");
      Views views(disk, world);
      views[r].SetHidden([](std::string_view path) { return path.starts_with("global_step_20"); });
      expect(views, milliseconds(0), 10);
    }
    {
      SCOPED_TRACE("sees the new directory a little later");
      Views views(disk, world);
      const auto until = std::chrono::steady_clock::now() + milliseconds(r == 0 ? 0 : 300);
      views[r].SetHidden([until](std::string_view path) {
        return path.starts_with("global_step_20") && std::chrono::steady_clock::now() < until;
      });
      expect(views, milliseconds(20'000), 20);
    }
    {
      SCOPED_TRACE("sees one file of it later than the rest");
      Views views(disk, world);
      const auto until = std::chrono::steady_clock::now() + milliseconds(r == 0 ? 0 : 300);
      views[r].SetHidden([until](std::string_view path) {
        return path == "global_step_20/actor/model/rank_00001.safetensors" &&
               std::chrono::steady_clock::now() < until;
      });
      expect(views, milliseconds(20'000), 20);
    }
    if (r > 0) {
      SCOPED_TRACE("sees another step under this name");
      Views views(disk, world);
      views[r].SetAlias([](std::string_view path) {
        std::string name(path);
        if (name.starts_with("global_step_20")) name.replace(0, 14, "global_step_10");
        return name;
      });
      expect(views, milliseconds(0), 10);
    }
    {
      SCOPED_TRACE("sees old bytes of one file");
      Views views(disk, world);
      views[r].SetAlias([](std::string_view path) {
        std::string name(path);
        if (name == "global_step_20/actor/optimizer/rank_00000.safetensors")
          name.replace(0, 14, "global_step_10");
        return name;
      });
      // Only its reader can tell.
      LoadSetup setup = views.Setup();
      job.cut.Clear(0x11);
      const LoadOutcome outcome = LoadRanks(job.cut, setup);
      ExpectAllOk(outcome);
      EXPECT_EQ(job.cut.FirstDifference(outcome.records[0]->step == 20 ? newer : job.state), "");
      EXPECT_EQ(outcome.records[0]->step, r == 0 ? 10 : 20);
    }
  }
}

TEST(Load, WeightsCanComeFromTheWholeHuggingFaceModel) {
  for (const bool sharded_too : {false, true}) {
    const TrainingState state = MakeTrainingState(21);
    const TrainingState older = MakeTrainingState(20);
    SimFileSystem disk;
    Cut from({3}, 5);
    const auto with_hf = [&](SaveRequest& request) {
      request.contents.model = sharded_too;
      request.contents.hf_model = true;
    };
    from.Fill(older);
    ThrowIfError(SaveOn(disk, from, 10, SmallOptions(), with_hf));
    from.Fill(state);
    ThrowIfError(SaveOn(disk, from, 20, SmallOptions(), with_hf));
    Cut to({4}, 6);
    const auto load = [&](Views& views, bool in_place) {
      LoadSetup setup = views.Setup();
      setup.change = [&](int, LoadRequest& request) {
        request.contents.model = false;
        request.contents.hf_model = true;
        request.in_place = in_place;
        return true;
      };
      to.Clear(0x21);
      return LoadRanks(to, setup);
    };
    for (const bool in_place : {false, true}) {
      Views views(disk, 4);
      ExpectAllOk(load(views, in_place));
      EXPECT_EQ(to.FirstDifference(state), "");
      EXPECT_EQ(views.BytesRead("/model/rank_00000.safetensors"), 0);  // not the sharded ones
    }
    // Damage in the header, and in the weights.
    const std::string path = "global_step_20/actor/huggingface/model.safetensors";
    const std::string content = disk.Content(path);
    for (const size_t at : {size_t{50}, content.size() - 50}) {
      std::string damaged = content;
      damaged[at] ^= 8;
      disk.SetContent(path, damaged);
      Views views(disk, 4);
      const LoadOutcome outcome = load(views, at > 50);
      ExpectAllOk(outcome);
      EXPECT_EQ(outcome.records[0]->step, 10);
      EXPECT_EQ(to.FirstDifference(older), "");
      EXPECT_THAT(outcome.records[0]->skipped[0].reason,
                  AllOf(HasSubstr(path), HasSubstr("chunk " + std::to_string(at / 4096))));
    }
    disk.SetContent(path, content);
    // What was not saved cannot be asked for.
    const auto model = LoadFrom(disk, to, [](LoadRequest& request) { request.in_place = true; });
    EXPECT_EQ(model.ok(), sharded_too) << model.status().ToString();
    if (!sharded_too) {
      EXPECT_THAT(model.status().message(),
                  AllOf(HasSubstr("holds no model"), HasSubstr("load_contents")));
    }
  }
  SimFileSystem disk;
  Cut cut({2}, 5);
  cut.Fill(MakeTrainingState(1));
  ThrowIfError(SaveOn(disk, cut, 10, SmallOptions()));
  const auto none = LoadFrom(disk, cut, [](LoadRequest& request) {
    request.contents.model = false;
    request.contents.hf_model = true;
  });
  EXPECT_EQ(none.status().code(), StatusCode::kConfig);
  EXPECT_THAT(none.status().message(),
              AllOf(HasSubstr("holds no hf_model"), HasSubstr("load_contents")));
}

TEST(Load, TensorsThatDifferNeedPermissionByName) {
  const TensorInfo same{"model.same", DType::kF32, Dims{40}};
  const TensorInfo shape_saved{"model.shape", DType::kF32, Dims{40}};
  const TensorInfo shape_here{"model.shape", DType::kF32, Dims{41}};
  const TensorInfo dtype_saved{"model.dtype", DType::kF32, Dims{40}};
  const TensorInfo dtype_here{"model.dtype", DType::kBF16, Dims{40}};
  const TensorInfo saved_only{"model.saved_only", DType::kF32, Dims{40}};
  const TensorInfo here_only{"model.here_only", DType::kF32, Dims{40}};
  const auto cut_of = [](const std::vector<TensorInfo>& tensors) {
    Cut cut({2}, 1, ModelSize::kTiny);
    for (size_t r = 0; r < 2; ++r) {
      cut.model[r] = RankPart();
      cut.optimizer[r] = RankPart();
      for (const TensorInfo& tensor : tensors)
        cut.model[r].AddBox(tensor, Box::Whole(tensor.shape), static_cast<int>(r));
    }
    return cut;
  };
  SimFileSystem disk;
  Cut saved = cut_of({same, shape_saved, dtype_saved, saved_only});
  const GlobalState state = MakeState({same, shape_saved, dtype_saved, saved_only}, 1);
  for (RankPart& part : saved.model) part.Fill(state);
  const auto only_model = [](auto& request) { request.contents.optimizer = false; };
  ThrowIfError(SaveOn(disk, saved, 10, SmallOptions(), only_model));

  Cut here = cut_of({same, shape_here, dtype_here, here_only});
  const std::vector<std::string> names = {"model.shape", "model.dtype", "model.here_only",
                                          "model.saved_only"};
  for (const bool in_place : {false, true}) {
    here.Clear(0x7b);
    const auto load = [&](const std::vector<std::string>& allowed) {
      return LoadFrom(disk, here, [&](LoadRequest& request) {
        only_model(request);
        request.in_place = in_place;
        request.allow_missing = allowed;
      });
    };
    // 1. All that differs on this side is named at once, with where to change it.
    const auto refused = load({});
    EXPECT_EQ(refused.status().code(), StatusCode::kConfig);
    EXPECT_THAT(refused.status().message(),
                AllOf(HasSubstr("actor/model:model.shape (has [40], expected [41])"),
                      HasSubstr("actor/model:model.dtype (has F32, expected BF16)"),
                      HasSubstr("actor/model:model.here_only"), HasSubstr("allow_missing"),
                      HasSubstr("actor_rollout_ref.model"), HasSubstr("global_step_10")));
    // 2. Any one that is not named is an error.
    for (const std::string& missing : names) {
      std::vector<std::string> others;
      for (const std::string& name : names) {
        if (name != missing) others.push_back(name);
      }
      const auto one = load(others);
      EXPECT_EQ(one.status().code(), StatusCode::kConfig);
      EXPECT_THAT(one.status().message(), AllOf(HasSubstr(missing), HasSubstr("allow_missing")));
      for (const std::string& name : others)
        EXPECT_THAT(one.status().message(), Not(HasSubstr(name)));
    }
    for (const RankPart& part : here.model) {
      EXPECT_EQ(static_cast<int>((*part.memory[0])[0]), 0x7b);
    }
    // 3. With all of them named, what is the same is loaded, and the rest stays.
    const auto loaded = load({"model.[!s]*", "model.s[!a]*", "model.saved_only"});
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    for (const RankPart& part : here.model) {
      EXPECT_EQ(*part.memory[0], state.at("model.same").bytes);
      for (size_t i = 1; i < part.memory.size(); ++i) {
        EXPECT_TRUE(std::all_of(part.memory[i]->begin(), part.memory[i]->end(),
                                [](std::byte b) { return b == std::byte{0x7b}; }));
      }
    }
  }
}

}  // namespace
}  // namespace keel::checkpoint
