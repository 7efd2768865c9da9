// Whether the streams of a recording still pay: told by what its replays take, and by nothing else.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

namespace npucompose {

// On a machine that has other work to do a worker gets no core, and whoever waits for it waits long: the same plan may
// take 25 times what one stream takes. `side_by_side()` says how the next replay runs, `took()` what it took; replays
// take turns, so one thread at a time calls them. The counts may be read by any thread.
//
// Side by side: what replays take beyond one stream's time adds up, what they save is taken off again, never below
// nothing (a cumulative sum: Page, Continuous inspection schemes, Biometrika 41, 1954). It has to be worth several
// replays, and several replays have to be late, so that no hiccup counts. Then a few replays are timed on one stream,
// and where these are faster, one stream it is. So they are now and then without a cause: the machine may have changed.
//
// One after the other: streams are tried again once the pause is over. It is so many times as long as what the streams
// lost that trying costs 1/32 of the time, and after a trial that fails half of that, down to 1/1024.
class StreamWatch {
 public:
  // `one_ns` is what a replay takes on one stream. 0 for a plan that somebody asked for, paying or not: its first
  // replays show what it takes itself, and only what takes a quarter longer, and longer than one stream, is late.
  explicit StreamWatch(int64_t one_ns) : phase_(one_ns ? Phase::streams : Phase::own), one_(one_ns) {}

  bool side_by_side() const { return phase_ == Phase::own || phase_ == Phase::streams; }

  void took(int64_t ns) {
    add(replays, 1);
    if (!side_by_side()) add(alone, 1);
    if (phase_ == Phase::streams) return streams_took(ns);
    if (phase_ == Phase::alone) return alone_took(ns);
    timed_[timings_++] = ns;
    if (timings_ == kTimed) all_timed();
  }

  // Replays; those of them on one stream; how often streams were given up, and how often they were tried again.
  std::atomic<int64_t> replays{0}, alone{0}, falls{0}, trials{0};

 private:
  enum class Phase { own, one, streams, alone };

  static constexpr size_t kTimed = 5;
  static constexpr int64_t kAllowed = 8;        // so many replays on one stream may be lost
  static constexpr int64_t kAllowedTrying = 2;  // in the first kTrial replays after a pause
  static constexpr int64_t kLate = 3, kTrial = 16;
  static constexpr int64_t kOften = 4096;  // replays until one stream is timed again
  static constexpr int64_t kCaution = 32, kMostCaution = 1024;

  // The writer is alone: no need for more than a store.
  static void add(std::atomic<int64_t>& count, int64_t more) {
    count.store(count.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }

  int64_t limit() const { return std::max(one_ + one_ / 32, own_ + own_ / 4); }

  void all_timed() {
    timings_ = 0;
    std::sort(timed_.begin(), timed_.end());
    if (phase_ == Phase::own) {
      own_ = timed_[kTimed / 4];  // the first ones are slow, and so are those of a machine that is busy already
      phase_ = Phase::one;
      return;
    }
    one_ = timed_[kTimed / 2];
    since_timed_ = 0;
    phase_ = Phase::streams;
    const int64_t lost = stretch_ns_ - stretch_ * one_;
    if (is_due_ && stretch_ns_ > stretch_ * limit()) fall(lost);
    forget();
  }

  void streams_took(int64_t ns) {
    run_ns_ += ns;
    const bool trying = trial_left_ > 0;
    if (trying) --trial_left_;
    lost_ += ns - limit();
    if (lost_ <= 0) {
      forget();
    } else {
      ++stretch_, stretch_ns_ += ns, late_ += ns > limit();
    }
    is_due_ = lost_ > limit() * (trying ? kAllowedTrying : kAllowed) && late_ >= (trying ? 1 : kLate);
    if (is_due_ && trying) {
      fall(lost_);
      forget();
    } else if (is_due_ || ++since_timed_ >= kOften) {
      phase_ = Phase::one;
    }
  }

  void alone_took(int64_t ns) {
    one_ += (std::min(ns, 2 * one_) - one_) / 8;  // a single late one says little
    pause_left_ -= ns;
    if (pause_left_ > 0) return;
    add(trials, 1);
    phase_ = Phase::streams;
    trial_left_ = kTrial;
    run_ns_ = since_timed_ = 0;
  }

  void fall(int64_t lost) {
    add(falls, 1);
    caution_ = run_ns_ > pause_ ? kCaution : std::min(2 * caution_, kMostCaution);
    pause_ = pause_left_ = lost * caution_;
    phase_ = Phase::alone;
  }

  void forget() { lost_ = stretch_ = stretch_ns_ = late_ = 0; }

  Phase phase_;
  int64_t one_, own_ = 0;
  std::array<int64_t, kTimed> timed_{};
  size_t timings_ = 0;
  int64_t lost_ = 0, stretch_ = 0, stretch_ns_ = 0, late_ = 0;  // since nothing was lost
  bool is_due_ = false;
  int64_t trial_left_ = 0, since_timed_ = 0, run_ns_ = 0;
  int64_t pause_ = 0, pause_left_ = 0, caution_ = kCaution;
};

}  // namespace npucompose
