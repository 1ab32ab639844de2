// Event files as bytes: the records' checksums, what a start takes back, and a folder that fails.
// That TensorBoard itself reads them, tests/e2e/dashboards_test.py shows.

#include "trainer/metrics/event_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <vector>

#include "trainer/metrics/event_encoding.h"

namespace keel::trainer {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string Hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    constexpr const char* kDigits = "0123456789abcdef";
    text += kDigits[static_cast<unsigned char>(c) >> 4];
    text += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return text;
}

TEST(EventEncodingTest, ChecksumsAreThoseOfTheStandard) {
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283U);  // RFC 3720's polynomial, the usual check value
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aaU);  // RFC 3720, B.4
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(Crc32c(""), 0U);
  // The mask of TFRecord: ((crc >> 15) | (crc << 17)) + 0xa282ead8.
  EXPECT_EQ(MaskedCrc32c("123456789"), ((0xe3069283U >> 15) | (0xe3069283U << 17)) + 0xa282ead8U);
}

TEST(EventEncodingTest, EventsAreProtocolBuffers) {
  // Written by hand: field 1 a double, 2 a varint, 3 and 5 bytes.
  EXPECT_EQ(Hex(FileVersionEvent(1.0)), "09000000000000f03f1a0d627261696e2e4576656e743a32");
  EXPECT_EQ(Hex(SessionStartEvent(1.0, 300)), "09000000000000f03f10ac023a020801");
  const std::vector<std::pair<std::string, double>> one = {{"a", 0.5}};
  EXPECT_EQ(Hex(ScalarsEvent(1.0, 2, one)), "09000000000000f03f10022a0a0a080a0161150000003f");
}

class EventFileTest : public ::testing::Test {
 public:
  EventFileTest() {
    folder_ = fs::path(::testing::TempDir()) / ("keel_events_" + std::to_string(getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    LogOptions options;
    options.file = folder_ / "log";
    log_ = std::make_unique<Logger>(options);
  }
  ~EventFileTest() override { fs::remove_all(folder_); }
  std::string Read(const fs::path& path) const {
    std::ifstream in(path, std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
  }
  // The payloads of a file, each with its checksums right.
  std::vector<std::string> Events(const std::string& path) const {
    const std::string bytes = Read(path);
    std::vector<std::string> events;
    for (size_t at = 0; at < bytes.size();) {
      uint64_t size = 0;
      uint32_t of_size = 0, of_event = 0;
      std::memcpy(&size, bytes.data() + at, 8);
      std::memcpy(&of_size, bytes.data() + at + 8, 4);
      EXPECT_EQ(of_size, MaskedCrc32c(bytes.substr(at, 8)));
      events.push_back(bytes.substr(at + 12, size));
      std::memcpy(&of_event, bytes.data() + at + 12 + size, 4);
      EXPECT_EQ(of_event, MaskedCrc32c(events.back()));
      at += size + 16;
    }
    return events;
  }

 protected:
  fs::path folder_;
  std::unique_ptr<Logger> log_;
};

TEST_F(EventFileTest, EachStartHasAFileBehindTheEarlierOnesAndTakesBackWhatIsDoneAgain) {
  const std::string runs = folder_ / "tb";
  const std::vector<std::pair<std::string, double>> one = {{"loss", 2.5}};
  EventFile first = EventFile::Begin(runs, 0, *log_);
  first.Scalars(1, one);
  first.Scalars(2, one);
  EventFile second = EventFile::Begin(runs, 1, *log_);
  second.Scalars(2, one);
  EXPECT_LT(fs::path(first.path()).filename(), fs::path(second.path()).filename());
  const auto events = Events(second.path());
  ASSERT_EQ(events.size(), 3u);
  EXPECT_THAT(events[0], HasSubstr("brain.Event:2"));
  EXPECT_EQ(Hex(events[1]).substr(18), "10023a020801") << "steps from 2 on";
  EXPECT_THAT(events[2], HasSubstr("loss"));
  EXPECT_EQ(Hex(Events(first.path())[1]).substr(18), "10003a020801") << "all steps";
}

TEST_F(EventFileTest, AHistogramHoldsEveryValueOnce) {
  const std::vector<double> values = {1, 2, 2, 3, 100, std::nan("")};
  const std::string event = HistogramEvent(0, 1, "h", values);
  // HistogramProto's packed doubles stand at the end: 30 limits, then 30 counts.
  std::vector<double> packed(30);
  std::memcpy(packed.data(), event.data() + event.size() - 240, 240);
  EXPECT_EQ(packed.front(), 4);  // below 1 + 99 / 30
  EXPECT_EQ(packed.back(), 1);
  double sum = 0;
  for (const double count : packed) sum += count;
  EXPECT_EQ(sum, 5);
}

TEST_F(EventFileTest, AFolderThatCannotBeWrittenIsSaidAndCountedAndWrittenOnceItCan) {
  const std::string runs = folder_ / "tb";
  std::ofstream(runs) << "a file where the folder is to be";
  const std::vector<std::pair<std::string, double>> one = {{"loss", 2.5}};
  EventFile file = EventFile::Begin(runs, 0, *log_);
  file.Scalars(1, one);
  file.Scalars(2, one);
  fs::remove(runs);
  file.Scalars(3, one);
  file.Close();
  const auto events = Events(file.path());
  ASSERT_EQ(events.size(), 3u);
  EXPECT_THAT(events[0], HasSubstr("brain.Event:2"));
  const std::string log = Read(folder_ / "log");
  EXPECT_THAT(log, HasSubstr("metrics are being lost from step 1 on: open " + runs));
  EXPECT_THAT(log, HasSubstr("can be written again; 2 events before this were lost"));
  EXPECT_THAT(log, HasSubstr("2 of the 3 events"));
}

}  // namespace
}  // namespace keel::trainer
